"""The journal on disk, by which everything that the daemon has acknowledged survives a crash (docs/durability.md)."""
