"""Experiments: replay a part of a log under other settings, into a separate log."""
