"""Records to Arrow in bulk, with the verdict of `schemas.serde` on each."""
