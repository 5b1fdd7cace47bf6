"""Starts the daemon: `python server.py --help`. All of it is in `purgatory.daemon`."""

import sys

from purgatory.daemon import main

if __name__ == "__main__":
    sys.exit(main())
