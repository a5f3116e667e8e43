"""Supervised training and preferences: a version from answers of the log, or from a file, without a batch."""
