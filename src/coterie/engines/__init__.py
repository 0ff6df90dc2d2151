"""Engines: they carry the programs of a method to its clients. No method imports one."""
