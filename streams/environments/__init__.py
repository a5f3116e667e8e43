"""Environments that agents act in; the same seed gives the same episode."""
