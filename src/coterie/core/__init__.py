"""What all rooms use: errors, keyed randomness, things chosen by name and their options, arrays, files."""
