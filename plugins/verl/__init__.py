"""The queue of verl (TransferQueue) in the log: its samples, batches to it, and its groups as tasks and responses."""
