"""Declarations of all topics: each fact is stated once."""
