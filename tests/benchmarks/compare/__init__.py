"""The demo's task beside TRL: time, tokens, memory and lines of code until the same held-out score, and after kills.

`make compare`, `make compare-crash`; docs/compare.md has the results.

Not covered: GPUs, and peers that need one (docs/compare.md says why each is left out).
"""
