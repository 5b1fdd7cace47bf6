"""The command line `purgatory`: commands are in `app`, what they print in `render`, and `main` is the entry point."""

from purgatory.cli.app import main

__all__ = ["main"]
