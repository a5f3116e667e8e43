// Ask a model, order a job that trains it, look at the job, and read an error.
//
//     npm run build && STREAMWARD_URL=http://127.0.0.1:8790 STREAMWARD_KEY=sw_… node dist/examples/order-job.js

import { createChatCompletion, createTrainingJob, getTrainingJob, listModels } from "../src";
import { createClient } from "../src/client";

declare const process: { env: Record<string, string | undefined>; exitCode?: number };

const client = createClient({ baseUrl: process.env.STREAMWARD_URL, auth: process.env.STREAMWARD_KEY });
const throwOnError = true;

async function main(): Promise<void> {
  const models = await listModels({ client, throwOnError });
  const policy = models.data.data[0]!.id.split("@")[0]!;
  const body = { model: policy, messages: [{ role: "user" as const, content: "1 + 1 =" }], max_tokens: 16 };
  const answer = await createChatCompletion({ client, body, throwOnError });
  console.log(`${answer.data.model} says ${JSON.stringify(answer.data.choices[0]!.message.content)}`);

  const queries = Array.from({ length: 12 }, (_, n) => ({ query: `${n} + ${n} =`, expected_outcome: `${2 * n}` }));
  const job = await createTrainingJob({
    client,
    body: { type: "RL_TRAINING", agent_id: policy, training_queries: queries, config: { n_iterations: 3 } },
    headers: { "Idempotency-Key": "the first job" },
    throwOnError,
  });
  const found = await getTrainingJob({ client, path: { job_id: job.data.id }, throwOnError });
  console.log(`job ${job.data.id} is ${found.data.status}`);

  const { error, response } = await getTrainingJob({ client, path: { job_id: "nobody's" } });
  console.log(`${response?.status} ${error?.error.code}: ${error?.error.details?.suggested_action}`);
}

main().catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
