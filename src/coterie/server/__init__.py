"""The server's side: the federation, the base of all methods, what is served, scores, and the course of a run."""
