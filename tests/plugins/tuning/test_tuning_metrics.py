"""What a process that tunes reports of the job that it does."""

from __future__ import annotations

from plugins.jobs.controller.gauges import JOB_STEP_AGE
from plugins.tuning import tuning_metrics
from plugins.tuning.tuning_metrics import TuningMetrics
from streams.observability.metrics import Meter
from tests.support.scrape import parse


def test_of_a_job_that_tunes_it_says_how_far_it_is_and_how_old_its_newest_step_is_until_it_has_ended() -> None:
    meter = Meter("tune")
    found = TuningMetrics(meter)
    found.begin("coach")
    found.step("coach", 1, 4, loss=0.5, grad_norm=2.0)
    found.step("coach", 2, 4, loss=0.25, grad_norm=1.0)
    seen = parse(meter.text())
    assert (seen.total(tuning_metrics.DONE.name), seen.total(tuning_metrics.STEPS.name)) == (0.5, 2)
    assert (seen.total(tuning_metrics.LOSS.name), seen.total(tuning_metrics.GRADIENT.name)) == (0.25, 1.0)
    assert 0 <= seen.total(JOB_STEP_AGE.name) < 60
    found.end("coach", "stopped")
    seen = parse(meter.text())
    assert seen.family(JOB_STEP_AGE.name) == seen.family(tuning_metrics.DONE.name) == []
    assert seen.total(tuning_metrics.ATTEMPTS.name, policy="coach", outcome="stopped") == 1


def test_whatever_who_tunes_reports_is_in_the_table_and_the_table_has_nothing_else() -> None:
    meter = Meter("tune")
    found = TuningMetrics(meter)
    found.begin("coach")
    found.step("coach", 1, 1, loss=0.5, grad_norm=2.0)
    meter.text()  # the age is set when somebody looks
    during = set(parse(meter.text()).kinds.items())
    found.end("coach", "completed")
    wanted = {(metric.name, metric.kind) for metric in (*tuning_metrics.METRICS, JOB_STEP_AGE)}
    assert during | set(parse(meter.text()).kinds.items()) == wanted
