"""What the server of agents says of its engine and its memory."""

from __future__ import annotations

from schemas.events import Observed, Sampling
from streams.engines.scripted.scripted_tokens import ScriptedTokenEngine
from streams.engines.token_stream import Generation
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.stages.agents.recording.conversations import held_bytes
from streams.stages.agents.recording.served_conversations import ServedConversations
from streams.stages.agents.recording.service import ServerMetrics
from tests.support.factories import trajectory, turn
from tests.support.scrape import parse


def test_every_metric_of_the_server_is_there_and_counts_once_however_often_somebody_looks() -> None:
    engine, meter = ScriptedTokenEngine(), Meter("serve")
    served = ServedConversations(held_bytes(turn(0)), "default".__eq__)
    remembered = served.of("default")
    assert remembered is not None
    ServerMetrics(meter, engine, served)
    try:
        stream = engine.submit(
            Generation(prompt_token_ids=tuple(b"user: hi\n"), sampling=Sampling(max_tokens=3), draw_key="a")
        )
        assert len(list(stream)) == 3
    finally:
        engine.close()
    shown = Observed(environment="guess@1", seed=1, digest="0" * 64, ok=False)
    for name in ("r1", "r2"):
        remembered.take(trajectory("started", trajectory_id=name, task_id=name, sampling_id=None))
        remembered.take(turn(0, trajectory_id=name, task_id=name, sampling_id=None, observed=shown))
    for _ in range(2):
        found = parse(meter.text())
    of_server = [metric for metric in catalog.all_metrics() if metric.processes == ("serve",) and not metric.needs]
    wanted = {metric.name: metric.kind for metric in of_server}
    assert {name: found.kinds[name] for name in wanted} == wanted
    assert found.total(catalog.SERVE_TOKENS.name) == 3
    assert found.total(catalog.SERVE_TRAJECTORIES.name) == 2
    assert found.total(catalog.SERVE_EVICTED.name) == 1
    assert found.total(catalog.SERVE_TURNS.name, fate="delivered") == found.total(catalog.SERVE_TURNS.name) == 2
    assert found.total(catalog.SERVE_ACTIONS.name, use="unusable") == found.total(catalog.SERVE_ACTIONS.name) == 2
    assert found.total(catalog.SERVE_REMEMBERED.name) == held_bytes(turn(0))
