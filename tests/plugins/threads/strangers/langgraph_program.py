"""A program with langgraph-sdk, run by the strangers' Python: threads, runs, streams and the store of a server.

python langgraph_program.py URL ──► a line of JSON: what it read
"""

from __future__ import annotations

import json
import sys
from typing import Any

from langgraph_sdk import get_sync_client

QUESTION: Any = {"messages": [{"role": "user", "content": "What is 47 * 83?"}]}
NAMESPACE = ["people", "staff"]


def texts(answer: Any) -> list[str]:
    """Return the roles of the messages of a thread or a run."""
    return [message["role"] for message in answer["messages"]]


def main(url: str) -> dict[str, Any]:
    """Return what a walk through the API read."""
    client, read = get_sync_client(url=url), {}
    threads, runs, store = client.threads, client.runs, client.store
    thread = threads.create(metadata={"topic": "sums"})["thread_id"]
    read["made twice"] = threads.create(thread_id=thread, if_exists="do_nothing")["thread_id"] == thread
    read["wait"] = texts(runs.wait(thread, "default", input=QUESTION))
    modes: Any = ["values", "messages", "updates"]
    streamed = runs.stream(
        thread, "default", input={"messages": [{"type": "human", "content": "Thank you."}]}, stream_mode=modes
    )
    read["stream"] = list(dict.fromkeys(part.event for part in streamed))
    run = runs.create(thread, "default", input=QUESTION, multitask_strategy="enqueue", metadata={"n": 1})["run_id"]
    read["join"] = len(runs.join(thread, run)["messages"])
    read["join_stream"] = [part.event for part in runs.join_stream(thread, run)]
    read["status"] = runs.get(thread, run)["status"]
    read["list"] = len(runs.list(thread))
    runs.cancel(thread, run)
    runs.delete(thread, run)
    read["search"] = [found["thread_id"] == thread for found in threads.search(metadata={"topic": "sums"})]
    read["history"] = len(threads.get_history(thread))
    read["update"] = threads.update(thread, metadata={"n": 2})["metadata"]
    read["copy"] = texts(threads.get(threads.copy(thread)["thread_id"]))
    read["stateless"] = runs.wait(None, "default", input=QUESTION)["run"]["status"]
    store.put_item(NAMESPACE, "ann", {"likes": "sums"})
    read["item"] = store.get_item(NAMESPACE, "ann")["value"]
    read["items"] = [len(store.search_items(["people"], filter={"likes": likes})["items"]) for likes in ("sums", "tea")]
    read["namespaces"] = store.list_namespaces(prefix=["people"])
    store.delete_item(NAMESPACE, "ann")
    threads.delete(thread)
    for name, gone in (("item gone", lambda: store.get_item(NAMESPACE, "ann")), ("gone", lambda: threads.get(thread))):
        try:
            gone()
        except Exception as exc:  # whatever the SDK makes of a 404: its name is what is read
            read[name] = type(exc).__name__
    return read


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
