"""To other trainers and back: a batch of the log as they read it, and an adapter of theirs as a version here."""
