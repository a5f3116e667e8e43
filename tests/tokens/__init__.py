"""Tokens in the engine against tokens in the log."""
