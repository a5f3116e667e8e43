// openai-go: chat with a tool, and a second question, streamed; then the same tool over responses.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

var number = map[string]any{"type": "integer"}
var parameters = map[string]any{"type": "object", "properties": map[string]any{"a": number, "b": number}}

func main() {
	client := openai.NewClient()
	model := os.Getenv("OPENAI_DEFAULT_MODEL")
	chat(&client, model)
	respond(&client, model)
}

func product(arguments string) string {
	var numbers struct{ A, B int }
	check(json.Unmarshal([]byte(arguments), &numbers))
	return fmt.Sprint(numbers.A * numbers.B)
}

func chat(client *openai.Client, model string) {
	calc := shared.FunctionDefinitionParam{Name: "calc", Parameters: parameters}
	call := openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is 47 * 83?")},
		Tools:    []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(calc)},
	}
	for {
		answer, err := client.Chat.Completions.New(context.Background(), call)
		check(err)
		reply := answer.Choices[0].Message
		call.Messages = append(call.Messages, reply.ToParam())
		if len(reply.ToolCalls) == 0 {
			fmt.Println(reply.Content)
			break
		}
		for _, asked := range reply.ToolCalls {
			call.Messages = append(call.Messages, openai.ToolMessage(product(asked.Function.Arguments), asked.ID))
		}
	}
	call.Messages = append(call.Messages, openai.UserMessage("Thank you."))
	stream := client.Chat.Completions.NewStreaming(context.Background(), call)
	whole := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		whole.AddChunk(stream.Current())
	}
	check(stream.Err())
	fmt.Println(whole.Choices[0].Message.Content)
}

func respond(client *openai.Client, model string) {
	call := responses.ResponseNewParams{
		Model: model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("What is 47 * 83?")},
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("calc", parameters, false)},
	}
	answer, err := client.Responses.New(context.Background(), call)
	check(err)
	results := responses.ResponseInputParam{}
	for _, item := range answer.Output {
		if item.Type == "function_call" {
			asked := item.AsFunctionCall()
			result := responses.ResponseInputItemParamOfFunctionCallOutput(product(asked.Arguments))
			result.OfFunctionCallOutput.CallID = openai.String(asked.CallID)
			results = append(results, result)
		}
	}
	call.PreviousResponseID = openai.String(answer.ID)
	call.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: results}
	answer, err = client.Responses.New(context.Background(), call)
	check(err)
	fmt.Println(answer.OutputText())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
