// The Vercel AI SDK: its loop over tools and a second question, by one of its providers.
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/`); // imports look in no folder that is named
const { generateText, jsonSchema, stepCountIs, tool } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createAnthropic } = require("@ai-sdk/anthropic");

globalThis.AI_SDK_LOG_WARNINGS = false;
const name = process.env.OPENAI_DEFAULT_MODEL;
const baseURL = process.env.OPENAI_BASE_URL;
const models = {
  default: () => createOpenAI()(name), // responses
  chat: () => createOpenAI().chat(name),
  compatible: () => createOpenAICompatible({ name: "streamward", baseURL })(name),
  anthropic: () => createAnthropic({ baseURL })(name),
};
const number = { type: "integer" };
const calc = tool({
  description: "Multiply two numbers.",
  inputSchema: jsonSchema({ type: "object", properties: { a: number, b: number }, required: ["a", "b"] }),
  execute: ({ a, b }) => a * b,
});
const messages = [];
for (const content of ["What is 47 * 83?", "Thank you."]) {
  messages.push({ role: "user", content });
  const answer = await generateText({ model: models[process.argv[3]](), messages, tools: { calc }, stopWhen: stepCountIs(5) });
  messages.push(...answer.response.messages);
  console.log(answer.text);
}
