"""Access to sources (docs/sources.md): mark names, log positions, and the link that a source uses."""
