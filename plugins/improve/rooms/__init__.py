"""The routes of verdicts, data sets and self-play."""
