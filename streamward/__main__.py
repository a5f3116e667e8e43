"""`python -m streamward`, and what launchers for torch start: `torchrun -m streamward train`."""

from streamward import main

main()
