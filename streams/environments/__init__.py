"""Environments: what an agent acts in, the same for the same seed."""
