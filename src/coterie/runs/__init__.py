"""Runs: everything that decides one, the folder it is written to, several side by side."""
