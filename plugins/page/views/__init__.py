"""What each page shows, read from the log as far as its visitor may see it."""
