"""Which tasks are answered now, and by which version: for whoever answers them."""
