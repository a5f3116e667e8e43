"""The commands of improvement."""
