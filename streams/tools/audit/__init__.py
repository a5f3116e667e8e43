"""Recount the log from the topics alone, with separate code, to find lost, doubled, phantom or late records."""
