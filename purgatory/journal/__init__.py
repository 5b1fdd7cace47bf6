"""Durability: what the daemon keeps on disk so that nothing it has answered is forgotten (docs/durability.md)."""
