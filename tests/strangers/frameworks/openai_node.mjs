// The official Node SDK: its own loop over tools, streamed; responses with previous_response_id; a streamed completion.
import { createRequire } from "node:module";

const OpenAI = createRequire(`${process.argv[2]}/`)("openai").default; // imports look in no folder that is named
const client = new OpenAI();
const model = process.env.OPENAI_DEFAULT_MODEL;
const number = { type: "integer" };
const calc = { name: "calc", description: "Multiply two numbers.", parameters: { type: "object", properties: { a: number, b: number } } };
const messages = [{ role: "user", content: "What is 47 * 83?" }];

const runner = client.chat.completions.runTools({
  model, messages, stream: true,
  tools: [{ type: "function", function: { ...calc, parse: JSON.parse, function: ({ a, b }) => String(a * b) } }],
});
console.log(await runner.finalContent());

let answer = await client.responses.create({ model, input: messages, tools: [{ type: "function", strict: false, ...calc }] });
const { call_id, arguments: given } = answer.output.find((item) => item.type === "function_call");
const { a, b } = JSON.parse(given);
answer = await client.responses.create({
  model, previous_response_id: answer.id, tools: [{ type: "function", strict: false, ...calc }],
  input: [{ type: "function_call_output", call_id, output: String(a * b) }],
});
console.log(answer.output_text);

let text = "";
for await (const chunk of await client.completions.create({ model, prompt: "Thank you.", stream: true })) text += chunk.choices[0].text;
console.log(text);
console.log((await client.models.list()).data[0].id);
