"""What everything rests on: errors, keyed randomness, things chosen by name, files."""
