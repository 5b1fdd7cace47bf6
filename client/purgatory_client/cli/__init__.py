"""The command line `purgatory`. The entry point is `main`; commands are in app.py, what they print in render.py."""

from purgatory_client.cli.app import main

__all__ = ["main"]
