"""What others were seen to get wrong when they record agents to train on them, and what prevents it here."""
