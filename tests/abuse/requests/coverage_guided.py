"""Coverage-guided fuzzing of the translate layer, the host and the engine with atheris (libFuzzer).

`python -m tests.abuse.requests.coverage_guided --program FILE` runs one program, such as a crash file that libFuzzer
wrote. If atheris is not installed (the `fuzz` extra), this prints a notice and succeeds.

The engine is always loaded from source here, because compiled code reports no coverage.
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from tests.abuse.result import Result
from tests.daemon_process import daemon_environment

CORPUS_SIZE = 400
STEPS_MAX = 6
PROGRAM_BYTES_MAX = 4_096


def source_only(path: str) -> FileFinder:
    """A path hook that loads the engine from source and leaves all other folders to the existing hooks."""
    if "purgatory/engine" not in path:
        raise ImportError(path)
    return FileFinder(path, (SourceFileLoader, [".py"]))


def load(atheris: Any) -> Any:  # noqa: ANN401 - atheris has no types
    """Import the module of programs with the whole product instrumented."""
    sys.path_hooks.insert(0, source_only)
    sys.path_importer_cache.clear()
    with atheris.instrument_imports(include=["purgatory"]):
        return importlib.import_module("tests.abuse.requests.direct")


def write_corpus(direct: Any, folder: Path, seed: int) -> None:  # noqa: ANN401 - loaded late, see above
    """Write the programs that libFuzzer starts from, generated from the descriptors."""
    maker = direct.MessageMaker(direct.PlausibleValues(seed))
    for number in range(CORPUS_SIZE):
        program = direct.program_of(maker, 1 + number % STEPS_MAX)
        if len(program) <= PROGRAM_BYTES_MAX:
            (folder / f"seed-{number}").write_bytes(program)


def fuzz_guided(seed: int, seconds: int) -> Result:
    """Run this module as a process, since libFuzzer ends its process. Returns a row of the table."""
    command = [sys.executable, "-m", __name__, "--seconds", str(seconds), "--seed", str(seed)]
    ended = subprocess.run(command, env=daemon_environment(), capture_output=True, text=True, check=False)
    result = Result("requests-guided", figures=ended.stdout.strip()[-200:])
    if ended.returncode:
        result.faults.append(ended.stderr[-2_000:])
    return result


def main() -> None:
    """Fuzz for some time. A program that raises is written to a file, and its traceback is printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.abuse.requests.coverage_guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    parser.add_argument("--program", type=Path, help="run this one file instead")
    given = parser.parse_args()
    if given.program is not None:
        importlib.import_module("tests.abuse.requests.direct").replay(given.program.read_bytes())
        return
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print("coverage-guided fuzzing is skipped: atheris is not installed (pip install -e '.[fuzz]')")
        return
    direct = load(atheris)
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(direct, Path(folder), given.seed)
        flags = [f"-max_total_time={given.seconds}", f"-seed={given.seed}", f"-max_len={PROGRAM_BYTES_MAX}"]
        atheris.Setup([sys.argv[0], "-print_final_stats=1", "-rss_limit_mb=4096", *flags, folder], direct.replay)
        atheris.Fuzz()  # ends the process, with exit code 0 if nothing was found


if __name__ == "__main__":
    main()
