"""Streamward's events, their Avro schemas, and their bytes on the wire."""
