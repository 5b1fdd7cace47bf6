"""`python -m purgatory` is `server.py` for an installed package; with `journal` first it looks after a journal."""

from __future__ import annotations

import sys

from purgatory import daemon
from purgatory.journal import cli

if __name__ == "__main__":
    if sys.argv[1:2] == ["journal"]:
        sys.exit(cli.main(sys.argv[2:]))
    sys.exit(daemon.main(program="python -m purgatory"))
