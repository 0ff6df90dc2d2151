"""Studies: experiments with axes, tables and figures, described in one file each."""
