"""The gauges of jobs, and the alerts about them.

controller ──► number, age, progress, cost ──┐
a plugin that does jobs ──► age of a step ───┴──► panels, JobStuck, BudgetNearlySpent, MonthNearlySpent
"""

from streams.observability.catalog import Metric
from streams.observability.grafana.alerts import Alert, Limit
from streams.observability.grafana.promql import largest, or_zero, select

JOBS = Metric(
    "streamward_jobs",
    "gauge",
    ("policy", "status"),
    "Jobs of the assigned partitions, by status.",
    ("jobs",),
    "a job",
)
JOB_AGE = Metric(
    "streamward_job_event_age_seconds",
    "gauge",
    ("policy",),
    "Time since the newest event of the running job, by that record's timestamp; 0 without one.",
    ("jobs",),
    "a job",
)
JOB_ITERATIONS = Metric(
    "streamward_job_iterations",
    "gauge",
    ("policy",),
    "Completed iterations of the running job; 0 without one.",
    ("jobs",),
    "a job",
)
JOB_DONE = Metric(
    "streamward_job_done_ratio",
    "gauge",
    ("policy",),
    "Completed share of its iterations.",
    ("jobs",),
    "a job",
)
JOB_SPENT = Metric(
    "streamward_jobs_spent_usd",
    "gauge",
    ("policy",),
    "Cost of all jobs of the assigned partitions; 0 without prices.",
    ("jobs",),
    "a job",
)
JOB_BUDGET = Metric(
    "streamward_job_budget_spent_ratio",
    "gauge",
    ("policy",),
    "Spent share of the running job's budget; 0 without a job or a budget.",
    ("jobs",),
    "a job",
)
TENANT_SPENT = Metric(
    "streamward_tenant_month_spent_usd",
    "gauge",
    ("tenant",),
    "Cost of a tenant's jobs in this month (UTC), by their events.",
    ("jobs",),
    "a job",
)
TENANT_MONTH = Metric(
    "streamward_tenant_month_spent_ratio",
    "gauge",
    ("tenant",),
    "Spent share of jobs.tenant_month_usd; 0 without a limit.",
    ("jobs",),
    "a job",
)
JOB_STEP_AGE = Metric(
    "streamward_job_step_age_seconds",
    "gauge",
    ("policy",),
    "Time since the newest step of the job in progress, or its start; no series without one.",
    (),
    "a job that a plugin does",
)
METRICS = (JOBS, JOB_AGE, JOB_ITERATIONS, JOB_DONE, JOB_SPENT, JOB_BUDGET, TENANT_SPENT, TENANT_MONTH, JOB_STEP_AGE)

JOB_SILENT = f"{largest(select(JOB_STEP_AGE), 'policy')} or {largest(select(JOB_AGE), 'policy')}"
"""Time since a job's newest event; for one that a plugin does since its newest step, if its process answers."""
ALERTS = (
    Alert(
        "JobStuck", "warning", "5m", Limit(or_zero(JOB_SILENT), ">", 7200),
        "The job of `{{ $labels.policy }}` has made no progress for {{ $value | humanizeDuration }}.",
        do="`streamward jobs watch JOB` has its newest event; its trainer, policy agent or `tune --jobs` must run, and "
        "be scraped: docs/jobs.md#when-an-alert-fires",
    ),
    Alert(
        "BudgetNearlySpent", "warning", "0m",
        Limit(or_zero(largest(select(JOB_BUDGET), "policy")), ">", 0.9),
        "The running job of `{{ $labels.policy }}` has spent {{ $value | humanizePercentage }} of its budget.",
        do="nothing, if it may end there: its versions stay, and another job continues from them",
    ),
    Alert(
        "MonthNearlySpent", "warning", "0m",
        Limit(or_zero(largest(select(TENANT_MONTH), "tenant")), ">", 0.9),
        "Tenant `{{ $labels.tenant }}` has spent {{ $value | humanizePercentage }} of its monthly limit.",
        do="`streamward jobs costs --by tenant,month,job` says on what; raise `jobs.tenant_month_usd`, or wait",
    ),
)  # fmt: skip
