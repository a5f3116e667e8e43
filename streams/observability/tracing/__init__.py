"""W3C trace context from task to adapter, in the headers of records, and spans sent by OTLP."""
