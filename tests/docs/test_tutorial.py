"""docs/tutorial.md, followed from an empty folder: the package is installed from a wheel, and each block is run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from examples.free_ports import free_port
from examples.local_postgres import NoPostgres, find_programs
from tests.docs.pages import ROOT, blocks, comparable
from tests.kit.programs import run_program, skip_unless_required

SECONDS_MAX: Final = 600
CLEAN_UP: Final = """trap '
    status=$?
    set +e
    kill $(jobs -p) 2> /dev/null
    for data in replica primary; do pg_ctl -D $data -m immediate stop > /dev/null 2>&1; done
    exit $status
' EXIT
"""
"""Ends the processes that a failing tutorial leaves behind."""
UV: Final = f"""
.venv/bin/pip() {{ {shlex.quote(sys.executable)} -m uv pip "$@" --python .venv/bin/python; }}
"""
"""uv installs the same packages from its cache, in a hundredth of pip's time."""
PACE: Final = {
    "recovery_min_apply_delay=5s": "recovery_min_apply_delay=2s",
    "timeout=10": "timeout=6",
    "python3 -m venv": "python3 -m venv --without-pip",
    "initdb -D primary": "initdb -D primary --no-sync",
    "pg_basebackup": "pg_basebackup --checkpoint=fast",
}
"""The replica is less late than the page's, requests are refused sooner, and nothing is prepared that is not used."""
SOURCES: Final = ("purgatory", "client/purgatory_client", "pipeline", "connectors", "proto")
FILES: Final = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("postgres")]


def make_wheel(folder: Path) -> Path:
    """Build the wheel, uncompiled, from a copy of the sources; returns the folder that it is in."""
    tree = folder / "tree"
    leave = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=leave)
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "uv", "build", "-q", "--wheel", "--no-build-isolation", "-o", str(folder), "."]
    environment = {**os.environ, "PURGATORY_BUILD": "pure"}
    subprocess.run(command, cwd=tree, env=environment, check=True, timeout=SECONDS_MAX)
    return folder


def script_of_the_page(replaced: dict[str, str]) -> tuple[str, list[str]]:
    """The blocks of the page as one script, and the output that the page shows, with these words replaced."""
    lines, shown = ["set -eu"], []
    for block in blocks():
        text = re.sub(rf"\b({'|'.join(replaced)})\b", lambda word: replaced[word[0]], block.text)
        if block.page == "docs/tutorial.md" and block.language == "text":
            shown += text.splitlines()
        elif block.page == "docs/tutorial.md":
            lines.append(f"cat > {block.title} <<'END'\n{text}END" if block.title else text)
    return "\n".join(lines), shown


def as_another_user(programs: Path) -> str:
    """Shell functions that run PostgreSQL's programs as the user `postgres`, if this process is root's."""
    if os.geteuid() != 0:
        return ""
    names = ("initdb", "pg_ctl", "pg_basebackup")
    other = "setpriv --reuid=postgres --regid=postgres --init-groups"
    folder = shlex.quote(str(programs))
    calls = [f'{name}() {{ chown postgres .; {other} {folder}/{name} "$@"; }}' for name in names]
    return "\n".join([*calls, ""])


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the servers' user can reach; pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory(prefix="purgatory-tutorial-") as name:
        yield Path(name)


def test_the_tutorial_from_an_empty_folder(folder: Path) -> None:
    """Every command succeeds and prints what the page shows: a stale read, then none, and a replica that is gone."""
    try:
        programs = find_programs()
    except NoPostgres as missing:
        skip_unless_required("POSTGRES", missing)
    folder.chmod(0o755)
    wheels = make_wheel(folder / "wheels")
    (folder / "empty").mkdir()
    ports = {port: str(free_port()) for port in ("5433", "5434", "8000", "7440", "7441")}
    script, shown = script_of_the_page(ports | PACE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {
        "UV_FIND_LINKS": str(wheels),
        "UV_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PURGATORY_GRPC_ADDRESS": f"127.0.0.1:{ports['7440']}",
        "PURGATORY_HTTP_ADDRESS": f"127.0.0.1:{ports['7441']}",
        "PURGATORY_ADDRESS": f"127.0.0.1:{ports['7440']}",
        "PURGATORY_HTTP_URL": f"http://127.0.0.1:{ports['7441']}",
        "PATH": os.pathsep.join([str(Path(sys.executable).resolve().parent), os.environ["PATH"]]),
    }
    command = ["bash", "-c", as_another_user(programs) + CLEAN_UP + UV + script]
    done = run_program(command, cwd=folder / "empty", env=environment, timeout_s=SECONDS_MAX)
    printed = comparable(done.stdout.splitlines())
    assert [line for line in comparable(shown) if line not in printed] == [], done.stdout
    assert list((folder / "empty").iterdir()) == []
