// openai-java: chat with a tool, and a second question, streamed; then a question over responses.

import com.fasterxml.jackson.databind.ObjectMapper;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.FunctionParameters;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionToolMessageParam;
import com.openai.models.responses.ResponseCreateParams;
import java.util.Map;

public class OpenaiJava {
    public static void main(String[] arguments) throws Exception {
        OpenAIClient client = OpenAIOkHttpClient.fromEnv();
        String model = System.getenv("OPENAI_DEFAULT_MODEL");
        chat(client, model);
        var call = ResponseCreateParams.builder().model(model).input("Thank you.").build();
        client.responses().create(call).output().stream()
                .flatMap(item -> item.message().stream())
                .flatMap(message -> message.content().stream())
                .forEach(part -> System.out.println(part.asOutputText().text()));
        client.close();
    }

    static void chat(OpenAIClient client, String model) throws Exception {
        var number = Map.of("type", "integer");
        var parameters = FunctionParameters.builder()
                .putAdditionalProperty("type", JsonValue.from("object"))
                .putAdditionalProperty("properties", JsonValue.from(Map.of("a", number, "b", number)))
                .build();
        var calc = FunctionDefinition.builder().name("calc").parameters(parameters).build();
        var call = ChatCompletionCreateParams.builder()
                .model(model)
                .addTool(ChatCompletionFunctionTool.builder().function(calc).build())
                .addUserMessage("What is 47 * 83?");
        while (true) {
            var reply = client.chat().completions().create(call.build()).choices().get(0).message();
            call.addMessage(reply);
            if (reply.toolCalls().isEmpty()) {
                System.out.println(reply.content().orElseThrow());
                break;
            }
            for (var asked : reply.toolCalls().get()) {
                var numbers = new ObjectMapper().readTree(asked.asFunction().function().arguments());
                int product = numbers.get("a").asInt() * numbers.get("b").asInt();
                call.addMessage(ChatCompletionToolMessageParam.builder()
                        .toolCallId(asked.asFunction().id())
                        .content(Integer.toString(product))
                        .build());
            }
        }
        var whole = ChatCompletionAccumulator.create();
        try (var stream = client.chat().completions().createStreaming(call.addUserMessage("Thank you.").build())) {
            stream.stream().forEach(whole::accumulate);
        }
        System.out.println(whole.chatCompletion().choices().get(0).message().content().orElseThrow());
    }
}
