"""What speaks HTTP to people and programs; it decides nothing, and nothing but a command imports it."""
