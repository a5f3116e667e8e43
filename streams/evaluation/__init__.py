"""How good a version is, how sure that is, and what follows from it."""
