"""The HTTP server for people and programs. It decides nothing, and only commands import it."""
