"""What a SuperLink leaves in the folder of its state for who owns it."""

CONTROL = "control.toml"
"""The file that says where the SuperLink takes orders, and has the token that it asks for."""
