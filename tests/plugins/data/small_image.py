"""What the processes of the small image import of it (tests/deploy/test_images.py)."""

IMPORTED = ("plugins.data.contamination.contamination_recount",)
