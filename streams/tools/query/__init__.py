"""SQL over the log, archived and live, without moving it first.

For a notebook: `from streamward import connect`.
"""
