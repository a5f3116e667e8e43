"""What the processes of the small image import of it (tests/deploy/test_images.py)."""

IMPORTED = (
    "plugins.jobs.controller.controller",
    "plugins.jobs.log.job_log",
)
