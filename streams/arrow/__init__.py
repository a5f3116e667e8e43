"""Convert records to Arrow in bulk, with the same verdict on each as `schemas.serde`."""
