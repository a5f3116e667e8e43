"""Readings of the log for people and programs: the page, REST and the demo show these, and decide nothing."""
