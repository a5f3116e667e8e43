"""Work on the archive that an engine of the user's, Spark or Ray, spreads over machines."""
