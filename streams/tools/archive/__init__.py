"""Topics in files, beyond their retention: segments of a partition, and the manifests that name them."""
