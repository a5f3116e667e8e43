"""SQL over everything that happened, old and new, without moving it first.

For a notebook: `from streamward import connect`.
"""

from streams.tools.query.session import connect as connect
