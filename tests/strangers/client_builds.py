"""The clients in other languages, built from the source tree by their own tools, which keep what they download."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.kit.programs import skip_unless_required

ROOT: Final = Path(__file__).resolve().parents[2]
CLIENTS: Final = ROOT / "client"
PROTOS: Final = tuple(ROOT.glob("proto/**/*.proto"))
BUILT: Final = ROOT / ".build" / "strangers"
PACKAGES: Final = BUILT / "packages"
"""The packages that a release would publish, from the builds; for npm, the tarball that `npm publish` uploads."""
MAVEN_REPOSITORY: Final = PACKAGES / "maven"
"""A repository with the artifact, as `mvn deploy` fills one."""
BUILD_S: Final = 900.0
"""For a first build on a busy machine."""
OFFLINE: Final = ("Could not transfer artifact", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "dial tcp")
"""Messages of Maven, npm and Go when they cannot reach their registries."""
QUICK_MAVEN: Final = {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Maven ends before the second compiler pays off: without it, a build takes half of the processor time."""
QUICK_JAVA: Final = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
SOURCES: Final = {"go": ("go.*", "**/*.go"), "java": ("pom.xml", "src/**/*.java"), "typescript": ("*.json", "src/*.ts")}
"""The files that a client is built from, in addition to the contract."""
MORE_TOOLS: Final = ("/usr/local/go/bin", str(Path(sys.executable).parent))
"""Where Go is installed by default, and where this environment has buf."""


def tool_path() -> str:
    return os.pathsep.join([os.environ["PATH"], *MORE_TOOLS])


def build_go(program: str = "resume") -> list[str]:
    """The command of a program in client/go/cmd: "resume" or "conformance"."""
    require("GO", "go")
    folder, built = CLIENTS / "go", BUILT / "go"
    if is_new("go", "go", built / "conformance"):
        built.mkdir(parents=True, exist_ok=True)
        run_tool("GO", ["go", "build", "-trimpath", "-o", f"{built}{os.sep}", "./cmd/..."], folder)
        keep("go")
    return [str(built / program)]


@functools.cache
def go_tool(package: str) -> str:
    """A program that `go install` makes of a package at a version, as "example.com/cmd/name@v1.2.3"; kept."""
    name, version = package.rsplit("/", 1)[1].split("@")
    program = BUILT / "tools" / version / name
    if not program.exists():
        require("GO", "go")
        program.parent.mkdir(parents=True, exist_ok=True)
        run_tool("GO", ["go", "install", package], BUILT, {"GOBIN": str(program.parent)})
    return str(program)


def build_typescript(program: str = "resume") -> list[str]:
    """The command of a program in client/typescript/src, in Node: "resume" or "conformance"."""
    require("NODE", "node", "npm")
    folder = CLIENTS / "typescript"
    if is_new("typescript", "typescript", folder / "dist/bundle.js"):
        run_tool("NODE", ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"], folder)
        PACKAGES.mkdir(parents=True, exist_ok=True)
        run_tool("NODE", ["npm", "pack", "--pack-destination", str(PACKAGES)], folder)  # generates and compiles
        run_tool("NODE", ["npm", "run", "bundle"], folder)
        keep("typescript")
    return ["node", str(CLIENTS / "typescript" / "dist" / f"{program}.js")]


def bundle_typescript() -> Path:
    """The TypeScript client for browsers as one script, whose names are in `purgatory`."""
    build_typescript()
    return CLIENTS / "typescript" / "dist" / "bundle.js"


def build_java(program: str = "resume") -> list[str]:
    """The command of a program in client/java/src/main/java/purgatory/client, as above."""
    require("JAVA", "javac", "mvn")
    folder = CLIENTS / "java"
    if is_new("java", "java", folder / "target/classes"):
        repository = f"-DaltDeploymentRepository=local::{MAVEN_REPOSITORY.as_uri()}"
        run_tool("JAVA", ["mvn", "-q", "-B", "clean", "deploy", "-Dmaven.install.skip=true", repository], folder)
        keep("java")
    classes = os.pathsep.join([str(folder / "target" / "classes"), str(folder / "target" / "lib" / "*")])
    name = f"purgatory.client.{program.capitalize()}"
    return [*QUICK_JAVA, "-cp", classes, name]


_hashes: dict[str, str] = {}


def is_new(name: str, language: str, made: Path, *more: Path) -> bool:
    """Whether the client in this language, one of `more` or this file differs from the last build with this name, or
    its output is gone.
    """
    found, folder = hashlib.sha256(), CLIENTS / language
    sources = {file for pattern in SOURCES[language] for file in folder.glob(pattern)}
    for file in sorted({*sources, *PROTOS, *more, Path(__file__)}):
        found.update(file.read_bytes())
    _hashes[name] = found.hexdigest()
    kept = BUILT / f"{name}.sha256"
    return not (made.exists() and kept.exists() and kept.read_text() == _hashes[name])


def keep(name: str) -> None:
    """Record the sources of a build that succeeded."""
    BUILT.mkdir(parents=True, exist_ok=True)
    (BUILT / f"{name}.sha256").write_text(_hashes[name])


def require(language: str, *tools: str) -> None:
    """Skips the test where the toolchain is missing."""
    missing = [tool for tool in tools if shutil.which(tool, path=tool_path()) is None]
    if missing:
        skip_unless_required(language, f"this client needs {' and '.join(missing)}")


def run_tool(language: str, command: list[str], folder: Path, more: Mapping[str, str] = {}) -> str:
    """Run a program that must succeed; returns its output."""
    environment = {**os.environ, "PATH": tool_path(), **QUICK_MAVEN, **more}
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
    return done.stdout
