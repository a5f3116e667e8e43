"""Optional parts, a folder each: removed, everything else is green."""
