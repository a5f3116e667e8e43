"""The words Streamward speaks: its events, their Avro schemas, and the bytes on the wire."""
