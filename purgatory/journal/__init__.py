"""The journal on disk: everything that the daemon has receipted survives a crash (docs/durability.md)."""
