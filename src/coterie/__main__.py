"""`python -m coterie` is the command line."""

from coterie.cli import main

main()
