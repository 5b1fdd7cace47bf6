"""`python -m tests.scripts --record`: rewrite the output of scripts as the engine and the oracle say."""

import argparse
import sys
from pathlib import Path

from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import FOLDER, read_scripts, write_scripts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scripts", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="all files if none is given")
    parser.add_argument("--record", action="store_true", required=True, help="rewrite the recorded output")
    given = parser.parse_args()
    for path in given.files or sorted(FOLDER.glob("*.txt")):
        write_scripts(path, [one._replace(lines=EngineLevel().run(one)) for one in read_scripts(path)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
