"""Examples that a version is tuned on: rows of files and answers of groups, as tokens."""
