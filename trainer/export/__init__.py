"""Export batches of the log for other trainers, in the formats of plugins."""
