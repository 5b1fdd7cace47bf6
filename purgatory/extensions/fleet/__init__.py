"""The fleet extension: a daemon whose journal is a copy of a replicated log, and its standby (docs/fleet.md)."""
