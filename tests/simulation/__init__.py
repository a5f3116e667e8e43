"""Many stream workers over many partitions in virtual time: their own code, on a Kafka that is simulated."""
