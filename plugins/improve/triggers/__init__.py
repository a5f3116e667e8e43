"""Reasons to retrain: rules, the evidence for them, and the jobs that they start."""
