"""`python -m streams.cli` is `streamward`, where no script is installed."""

from streams.cli import main

main()
