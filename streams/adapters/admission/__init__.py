"""Choose the tasks to answer now, and their version, for all processes that answer tasks."""
