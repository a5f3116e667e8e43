"""What processes say of themselves as numbers, and what Prometheus and Grafana make of it."""
