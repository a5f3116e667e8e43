"""How good an adapter version is, and how certain that is."""
