"""`purgatory serve`: the daemon with the installed extensions. Apart from these imports, the client needs no server."""

import argparse
from collections.abc import Sequence

from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.flags import flag_parser
from purgatory.run_daemon import main

PROGRAM = "purgatory serve"


def serve(arguments: Sequence[str]) -> int:
    """Run the daemon and return its exit code."""
    return main(ALL, arguments, program=PROGRAM)


def serve_parser() -> argparse.ArgumentParser:
    return flag_parser(PROGRAM, ALL_SETTINGS)
