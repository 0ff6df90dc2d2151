"""The version, which run folders and messages carry."""

__version__ = "0.1.0"
