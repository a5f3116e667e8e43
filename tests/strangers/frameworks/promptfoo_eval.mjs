// promptfoo: two prompts of its own, and two versions of a prompt here, on the same question. argv[2]: a folder of npm.
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

const { OPENAI_BASE_URL, OPENAI_DEFAULT_MODEL: model } = process.env;
const node = `${process.argv[2]}/node_modules`;
const [sentence, number] = ["Answer in a sentence.", "Answer with a number alone."];

for (const template of [sentence, number]) {
  const made = await fetch(new URL("/prompts/templates", OPENAI_BASE_URL), {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name: "sums", template }),
  });
  const { version, error } = await made.json();
  console.log(error ? JSON.stringify(error) : `sums@${version}: ${template}`);
}

const provider = (api, version) => ({
  id: `openai:${api}:${model}`, label: version ? `${api}, sums@${version}` : api,
  prompts: version ? ["question"] : ["sentence", "number"],
  config: version ? { passthrough: { prompt: { id: "sums", version: String(version) } } } : {},
});
writeFileSync("promptfooconfig.json", JSON.stringify({
  prompts: [
    { label: "sentence", raw: `${sentence} {{question}}` },
    { label: "number", raw: `${number} {{question}}` },
    { label: "question", raw: "{{question}}" },
  ],
  providers: [provider("chat"), ...["chat", "responses"].flatMap((api) => [provider(api, 1), provider(api, 2)])],
  tests: [{ vars: { question: "47 * 83 =" }, assert: [{ type: "equals", value: "3901" }] }],
}));

const words = ["eval", "--config", "promptfooconfig.json", "--no-cache", "--max-concurrency", "1", "--output", "results.json"];
const ended = spawnSync(`${node}/.bin/node`, [`${node}/.bin/promptfoo`, ...words], { encoding: "utf8" });
if (![0, 100].includes(ended.status)) throw new Error(ended.stdout + ended.stderr); // 100: some answers are wrong
for (const { provider, prompt, success, response, error } of JSON.parse(readFileSync("results.json", "utf8")).results.results)
  console.log(`${provider.label}, ${prompt.label}: ${success ? "right" : "wrong"}, ${response?.output ?? error}`);
