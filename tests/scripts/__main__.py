"""`python -m tests.scripts --record`: rewrite the output of scripts as the engine and the oracle say, or the host.

With `--levels`: print which scripts each level cannot express, and why.
"""

import argparse
import asyncio
import sys
from collections import defaultdict
from pathlib import Path

from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import FOLDER, Script, all_scripts, read_scripts, write_scripts
from tests.scripts.message_levels import HostLevel


def recorded(script: Script) -> Script:
    """The script with the output of the engine, or of the host if the engine cannot express it."""
    if not EngineLevel.unsupported(script):
        return script._replace(lines=EngineLevel().run(script))
    with asyncio.Runner() as runner:
        return script._replace(lines=HostLevel(runner).run(script))


def print_levels() -> None:
    from tests.scripts.test_scripts import LEVELS

    scripts = all_scripts()
    for level in LEVELS:
        reasons = defaultdict(list)
        for name, script in scripts.items():
            reasons[level.unsupported(script)].append(name)
        print(f"{level.__name__}: {len(reasons.pop('', []))} of {len(scripts)} scripts")
        for reason, names in sorted(reasons.items()):
            print(f"  {reason}: {'; '.join(names)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scripts", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="all files if none is given")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="rewrite the recorded output")
    what.add_argument("--levels", action="store_true", help="print what each level cannot express")
    given = parser.parse_args()
    if given.levels:
        print_levels()
        return 0
    for path in given.files or sorted(FOLDER.glob("*.txt")):
        write_scripts(path, [recorded(one) for one in read_scripts(path)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
