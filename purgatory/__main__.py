"""`python -m purgatory` is `server.py` for an installed package."""

from __future__ import annotations

import sys

from purgatory.daemon import main

if __name__ == "__main__":
    sys.exit(main(program="python -m purgatory"))
