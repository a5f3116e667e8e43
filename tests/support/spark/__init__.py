"""An environment with Spark, and what it reads of a Delta table."""
