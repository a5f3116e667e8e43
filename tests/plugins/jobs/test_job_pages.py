"""The page's section of jobs, over an archive: a tenant sees its own."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from plugins.jobs.job_pages import list_jobs
from streams.settings.model import Archive, Settings, Topics
from streams.tools.views.log_view import LogReader, LogView
from tests.support.callers import person
from tests.support.factories import T0
from tests.support.log import page_log
from tests.support.log.archive_of import archived


def test_costs_and_jobs_are_those_of_the_tenant(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")), topics=Topics(policy_partitions=1))
    archived(settings, page_log.tenants_log(), count(T0, 1000))
    view = LogView(settings, "archive")
    own = list_jobs(LogReader(view, person("viewer", tenant="red")))
    assert [job["policy"] for job in own.jobs] == ["red.coach"]
    assert {cost["tenant"] for cost in own.costs} <= {"red"}
    assert len(list_jobs(LogReader(view)).jobs) == 2
    view.close()
