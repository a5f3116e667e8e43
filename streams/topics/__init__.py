"""What every topic is: each fact about it, declared once."""
