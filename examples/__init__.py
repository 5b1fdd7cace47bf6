"""Example programs. README.md suggests the order in which to read them."""
