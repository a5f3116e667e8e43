"""Why records become dead letters, and groups are dropped, in words: what happened, and what to do about it.

The log, its metrics and `admin dlq` group by the short word; people are shown these sentences.
"""

from __future__ import annotations

HOPELESS = {
    "superseded": "another sampling of the task was complete before it, and the first wins; a redrive changes nothing",
    "late": "its deadline has passed or its group has left, and a redrive makes it later still",
    "contradictory": "the log holds another record that it contradicts, and the first wins; write it under a new id",
    "unasked": "its task does not name this reward source; submit a task, under a new id, that does",
    "unknown_response": "the group of its task was made of another sampling, and has left",
    "over_quota": "the group of its task remembers as much of this topic as it may, and a redrive comes after that",
    "wrong_key": "it would return under the same key; write the event again, under the right one",
    "bad_adapter": "a second `trained` of a version changes nothing; repair the adapter store, then restart the agent",
    "bad_signature": "a second `trained` of a version changes nothing; sign it in the store, then restart the agent",
    "wrong_base": "a second `trained` of a version changes nothing; run the agent on the base it was trained on",
    "store_unreachable": "a second `trained` of a version changes nothing; repair the store, then restart the agent",
}
"""Reasons for which a redrive cannot help, and what to do instead."""
TEXTS = {
    "not_avro": "its bytes are not Avro in Confluent's framing",
    "unknown_schema": "its schema id is not known here",
    "wrong_event": "it is an event of another type than this topic has",
    "undecodable": "its body cannot be decoded",
    "contradictory": "it breaks a rule, or contradicts a record that came first",
    "wrong_key": "its key is not the id that its event names",
    "wrong_partition": "it is in another partition than its task's other records",
    "unknown_task": "its task has not come, and what it answers is unknown",
    "unknown_response": "it scores an answer that is not in its task's group",
    "superseded": "it answers a task of which another sampling was complete first",
    "late": "it came after its deadline, or after its group had left",
    "unasked": "it is a reward of a source that its task does not name",
    "over_quota": "there is more about its task than a group can remember",
    "too_large": "it is larger than its topic takes",
    "scorer_paused": "its scorer fails on everything and is paused; the answer is held and tried again",
    "score_failed": "its scorer failed after all retries, so the answer has no score",
    "no_judge": "its task asks for the judge, and this agent has none",
    "module_not_listed": "its task names a scorer in a module that scoring.modules does not list",
    "malformed_reward": "its scorer returned what no reward can hold",
    "bad_adapter": "files of the adapter are missing, changed or do not fit the base model",
    "bad_signature": "the adapter is not signed by a key that is trusted here",
    "wrong_base": "the adapter was trained on another base model than this agent has",
    "not_served": "no server shows that it serves the adapter",
    "store_unreachable": "the adapter store could not be reached",
}
"""Why a record could not be used, by reason."""
WAYS_OUT = {
    "not_avro": "Correct its producer: it needs a serializer for the registry's Avro schemas",
    "unknown_schema": "Its writer is newer than its reader: update the reader, then put the record back",
    "wrong_event": "Correct its producer: it writes to the wrong topic",
    "undecodable": "Check what wrote it: the record is cut short, or not of the schema that its id names",
    "wrong_partition": "Set the producer's partitioner to murmur2_random, then put the record back: it goes to the "
    "right partition",
    "unknown_task": "Write its task, then put the record back",
    "too_large": "Write a smaller event, or raise topics.max_record_bytes",
    "scorer_paused": "Repair the scorer: nothing is lost meanwhile",
    "score_failed": "Repair the scorer, then `streamward admin rescore --failed` writes the missing scores",
    "no_judge": "Set scoring.judge_url and scoring.judge_model for every scoring agent, then put the record back",
    "module_not_listed": "If the module is yours, list it in scoring.modules and restart the agents, then put the "
    "record back; else close it",
    "malformed_reward": "Repair the scorer, then `streamward admin rescore --failed` writes the missing scores",
    "not_served": "Repair the servers, then restart the agent",
}
"""What to do about it, by reason; for HOPELESS ones their own text."""
DROPPED = {
    "unanswered": "no slot was answered before the task's time was over",
    "unscored": "no answer was scored before the task's time was over, or no scorer had an opinion of any",
    "incomplete": "not every slot was answered and scored in time, and advantages.partial says to drop such groups",
    "too_few_scored": "too few answers had scores to compare (advantages.min_group)",
    "too_large": "the group was larger than a record may be",
    "erased": "its person was erased before it left",
    "no_training": "its person does not allow training",
}
"""Why groups are dropped before they reach a batch, in words."""


def reason_text(reason: str) -> str:
    """Return why a record could not be used, in words; an unknown reason, unchanged."""
    return TEXTS.get(reason, reason)


def way_out(reason: str) -> str:
    """Return what to do about a dead letter, in a sentence; empty for an unknown reason.

    >>> way_out("late")
    'Putting it back cannot help: its deadline has passed or its group has left, and a redrive makes it later still.'
    """
    if reason in HOPELESS:
        return f"Putting it back cannot help: {HOPELESS[reason]}."
    return f"{WAYS_OUT[reason]}." if reason in WAYS_OUT else ""


def dropped_text(reason: str) -> str:
    """Return why a group was dropped, in words."""
    return DROPPED.get(reason, reason)
