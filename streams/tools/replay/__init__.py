"""Part of a log again, under other settings, in a log of its own: an experiment."""
