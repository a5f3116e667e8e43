"""Batches for other trainers: a batch of the log as they read it, in the formats of plugins."""
