"""Measure how good an adapter version is, and how certain that is."""
