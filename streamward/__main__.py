"""`python -m streamward`, also for torch's launchers: `torchrun -m streamward train`."""

from streamward import main

main()
