"""Topics archived in files, beyond their retention: segments of partitions, and the manifests that name them."""
