"""What the processes of the small image import of it (tests/deploy/test_images.py)."""

IMPORTED = (
    "plugins.improve.curation.curator",
    "plugins.improve.triggers.retrain_controller",
    "plugins.improve.selfplay.selfplay_runner",
    "plugins.improve.datasets.dataset_audit",
)
