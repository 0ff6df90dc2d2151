"""`python -m coterie` is the command line."""

from coterie.cli.main import main

main()
