"""`python -m privfed`."""

from privfed.cli import main

main()
