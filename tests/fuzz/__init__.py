"""Inputs that somebody else wrote, mutated and given to every reader of them: errors of our tree, or values."""
