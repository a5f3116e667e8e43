"""Log lines, metrics and traces of processes, and the dashboards and alerts on them."""
