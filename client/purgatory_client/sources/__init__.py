"""What sources tell (docs/sources.md): the names of their marks, positions in logs, and the link of a source itself."""
