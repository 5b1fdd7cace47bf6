"""Compiles the simulator: engine, oracle and their connection, copied to .build/simulator and built there by mypyc.

`python -m tests.simulator.build`, then `python -m tests.simulator` in that folder: same steps and same traces, many
times as fast. Without a C compiler the copy stays uncompiled, which is only slower. `make sim` does both.
"""

import hashlib
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path
from textwrap import shorten

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / ".build" / "simulator"
SOURCES = (
    "purgatory/__init__.py",
    "purgatory/engine/**/*.py",
    "tests/engine/adapter.py",
    "tests/engine/pair.py",
    "tests/engine/plain.py",
    "tests/engine/oracle/*.py",
    "tests/simulator/*.py",
)
NOT_COMPILED = ("__init__.py", "__main__.py", "build.py")
DIGEST = "sources.sha256"


def sources() -> list[Path]:
    """The simulator's source files, relative to the root."""
    return sorted(path.relative_to(ROOT) for pattern in SOURCES for path in ROOT.glob(pattern))


def compiled_sources() -> list[Path]:
    """The files that are compiled: everything that runs more than once."""
    return [path for path in sources() if path.name not in NOT_COMPILED]


def digest() -> str:
    """A hash of the current state of all compiled sources."""
    whole = hashlib.sha256()
    for path in compiled_sources():
        text = (ROOT / path).read_bytes()
        whole.update(f"{path} {len(text)}\n".encode() + text)
    return whole.hexdigest()


def is_current() -> bool:
    """Whether the build, compiled or not, is of the current sources."""
    known = BUILT / DIGEST
    return known.exists() and known.read_text(encoding="utf-8") == digest()


def copy_sources(target: Path) -> None:
    """Copy the sources without compiled modules; code that runs in the copy does not use the tree."""
    for path in sources():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target / path)


def compile_copy() -> None:
    """Compile the copy in place, as one group: calls between its modules are plain C calls."""
    from mypyc.build import mypycify

    os.chdir(BUILT)
    modules = [str(path) for path in compiled_sources()]
    settings = f"--config-file={ROOT / 'pyproject.toml'}"
    extensions = mypycify(
        [settings, *modules], opt_level="3", debug_level="0", group_name="simulator", target_dir="build/c"
    )
    try:
        import_module("setuptools").setup(
            name="simulator",
            packages=[],
            ext_modules=extensions,
            script_args=["-q", "build_ext", "--inplace", "--build-temp=build/o", "--build-lib=build/lib"],
        )
    except SystemExit as problem:
        if os.environ.get("PURGATORY_BUILD") == "compiled":
            raise
        for library in BUILT.rglob("*.so"):
            library.unlink()
        print(f"The simulator stays uncompiled and is many times slower: {shorten(str(problem), 200)}", file=sys.stderr)


def main() -> None:
    if is_current():
        copy_sources(BUILT)
        return
    print("== compiling the simulator (a minute or two)", flush=True)
    wanted = digest()
    shutil.rmtree(BUILT, ignore_errors=True)
    copy_sources(BUILT)
    compile_copy()
    (BUILT / DIGEST).write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
