"""What Streamward costs, measured against its peers: `make bench`, or `make bench BENCH=join`.

Not covered: other machines. Compare ratios, which are measured side by side in one run, rather than seconds.
"""
