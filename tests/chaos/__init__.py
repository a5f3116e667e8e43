"""The fault matrix: real Kafka, real processes, real kills; and a verdict that counts every task.

    load ──► tasks ──► policy, scoring, streams ◄── a fault        after healing and draining:
      └──► ledger outside of Kafka ──────────────────────────────► verdict ◄── audit, and the log recomputed

`python -m tests.chaos` runs it and writes docs/reliability.md; `python -m tests.chaos --list` names the faults.
"""
