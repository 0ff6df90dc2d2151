"""The clients' side: what a program may do, what clients keep, letters between them."""
