"""Suites that others wrote, against our server: what each finds, and what they say to it."""
