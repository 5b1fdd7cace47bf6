"""Purgatory: waits as a service.

A caller registers an operation that cannot finish yet, others report progress, and each operation ends exactly once:
satisfied, failed, expired, cancelled or shutting down. This file defines only the version;
docs/architecture.md says which file to open first.
"""

__all__ = ["__version__"]

__version__ = "0.2.0"
