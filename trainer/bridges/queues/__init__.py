"""Batches of the log to a queue of samples, and samples of a queue to tasks and responses of the log."""
