"""The clients in other languages, built from the source tree by their own tools, which keep what they download."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENTS: Final = ROOT / "client"
PROTOS: Final = tuple(ROOT.glob("proto/**/*.proto"))
BUILT: Final = ROOT / ".build" / "strangers"
BUILD_S: Final = 300.0
"""With nothing kept from an earlier build, and the machine busy."""
OFFLINE: Final = ("Could not transfer artifact", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "dial tcp")
"""What Maven, npm and Go write when they cannot reach their registries."""
MORE_TOOLS: Final = ("/usr/local/go/bin", str(Path(sys.executable).parent))
"""Where Go is installed by default, and where this environment has buf."""


def tool_path() -> str:
    return os.pathsep.join([os.environ["PATH"], *MORE_TOOLS])


def build_go(program: str = "resume") -> list[str]:
    """The command of a program in client/go/cmd: "resume", "once" or "conformance"."""
    _require("GO", "go")
    _build_go_once()
    return [str(BUILT / "go" / program)]


@functools.cache
def _build_go_once() -> None:
    built = BUILT / "go"
    built.mkdir(parents=True, exist_ok=True)
    _run("GO", ["buf", "generate"], CLIENTS / "go")
    _run("GO", ["go", "build", "-o", f"{built}{os.sep}", "./cmd/..."], CLIENTS / "go")


@functools.cache
def go_tool(package: str) -> str:
    """A program that `go install` makes of a package at a version, as "example.com/cmd/name@v1.2.3"; kept."""
    name, version = package.rsplit("/", 1)[1].split("@")
    program = BUILT / "tools" / version / name
    if not program.exists():
        _require("GO", "go")
        program.parent.mkdir(parents=True, exist_ok=True)
        _run("GO", ["go", "install", package], BUILT, {"GOBIN": str(program.parent)})
    return str(program)


def build_typescript(program: str = "resume") -> list[str]:
    """The command of a program in client/typescript/src, in Node: "resume", "once" or "conformance"."""
    _require("NODE", "node", "npm")
    _build_typescript_once()
    return ["node", str(CLIENTS / "typescript" / "dist" / f"{program}.js")]


def bundle_typescript() -> Path:
    """The TypeScript client for browsers as one script, whose names are in `purgatory`."""
    build_typescript()
    _run("NODE", ["npm", "run", "bundle"], CLIENTS / "typescript")
    return CLIENTS / "typescript" / "dist" / "bundle.js"


@functools.cache
def _build_typescript_once() -> None:
    folder = CLIENTS / "typescript"
    installed, lock = folder / "node_modules" / ".package-lock.json", folder / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _run("NODE", ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"], folder)
    _run("NODE", ["npm", "run", "generate"], folder)
    _run("NODE", ["npm", "run", "build"], folder)


def build_java(program: str = "resume") -> list[str]:
    """The command of a program in client/java/src/main/java/purgatory/client, as above."""
    _require("JAVA", "javac", "mvn")
    folder = CLIENTS / "java"
    built = folder / "target" / f"{_hash_of([folder / 'pom.xml', *folder.glob('src/**/*.java'), *PROTOS])}.built"
    if not built.exists():
        _run("JAVA", ["mvn", "-q", "-B", "clean", "package"], folder)
        built.touch()
    classes = os.pathsep.join([str(folder / "target" / "classes"), str(folder / "target" / "lib" / "*")])
    return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, f"purgatory.client.{program.capitalize()}"]


def _hash_of(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()


def _require(language: str, *tools: str) -> None:
    """Skips the test where the toolchain is missing."""
    missing = [tool for tool in tools if shutil.which(tool, path=tool_path()) is None]
    if missing:
        skip_unless_required(language, f"this client needs {' and '.join(missing)}")


def skip_unless_required(language: str, reason: str) -> None:
    """Skips the test, or fails it if PURGATORY_REQUIRE_<language>=1 says that it must run."""
    assert os.environ.get(f"PURGATORY_REQUIRE_{language}") != "1", reason
    pytest.skip(reason)


def _run(language: str, command: list[str], folder: Path, more: Mapping[str, str] = {}) -> None:
    environment = {**os.environ, "PATH": tool_path(), **more}
    program = shutil.which(command[0], path=tool_path())
    assert program is not None, f"{command[0]} is missing"
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    written = f"{' '.join(command)} in {folder}:\n{done.stdout}{done.stderr}"
    if done.returncode and any(sign in written for sign in OFFLINE):
        skip_unless_required(language, f"this client needs what its tool fetches: {written[-2_000:]}")
    assert done.returncode == 0, written
