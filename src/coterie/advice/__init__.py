"""Which method serves a federation: how its clients differ, what pilots show, and what follows from both."""
