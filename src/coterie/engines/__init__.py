"""Engines carry programs to clients. Methods import none of them."""
