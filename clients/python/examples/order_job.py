"""Ask a model, order a job that trains it, look at the job, and read an error.

STREAMWARD_URL=http://127.0.0.1:8790 STREAMWARD_KEY=sw_… python order_job.py
"""

from __future__ import annotations

import os

from streamward_client import ApiError, Client


def main() -> None:
    """Print what each step gives."""
    with Client(os.environ["STREAMWARD_URL"], os.environ.get("STREAMWARD_KEY")) as client:
        policy = client.list_models()["data"][0]["id"].partition("@")[0]
        answer = client.create_chat_completion(
            {"model": policy, "messages": [{"role": "user", "content": "1 + 1 ="}], "max_tokens": 16}
        )
        print(f"{answer['model']} says {answer['choices'][0]['message']['content']!r}")
        client.give_feedback({"id": answer["id"], "value": 1, "reason": "It is an answer."})

        job = client.create_training_job(
            {
                "type": "RL_TRAINING",
                "agent_id": policy,
                "training_queries": [{"query": f"{n} + {n} =", "expected_outcome": str(2 * n)} for n in range(12)],
                "config": {"n_iterations": 3},
            },
            idempotency_key="the first job",
        )
        print(f"job {job['id']} is {client.get_training_job(job['id'])['status']}")

        try:
            client.get_training_job("nobody's")
        except ApiError as error:
            print(f"{error.status} {error.code}: {error.suggested_action}")


if __name__ == "__main__":
    main()
