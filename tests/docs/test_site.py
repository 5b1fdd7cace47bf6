"""The documentation as a site: it builds without warnings or other hosts, and the code on its first pages runs
unchanged.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.daemon_process import DaemonProcess
from tests.strangers.client_builds import BUILT, build_go, build_java, build_typescript, tool_path

ROOT = Path(__file__).resolve().parent.parent
START = ROOT / "docs" / "start"
CLI = "from purgatory.cli import main; main()"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def advance_as_told(page: Path, daemon: DaemonProcess) -> None:
    """Run the `purgatory advance` command of a page."""
    [arguments] = re.findall(r"`purgatory (advance [^`]+)`", page.read_text("utf-8"))
    command = [sys.executable, "-c", CLI, *arguments.split(), "--address", daemon.address]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_site_builds_and_needs_no_other_host(tmp_path: Path) -> None:
    """The build has no warning, an entry for every RPC, and no script, style sheet or image from another host."""
    pytest.importorskip("material")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (built.returncode, built.stderr) == (0, "")
    reference = (tmp_path / "api.html").read_text("utf-8")
    calls = re.findall(r"rpc (\w+)\(", (ROOT / "proto/purgatory/v1/purgatory_service.proto").read_text("utf-8"))
    assert calls
    assert [call for call in calls if f'<h4 id="{call.lower()}"' not in reference] == []
    pages = {page.name: page.read_text("utf-8") for page in tmp_path.rglob("*.html")}
    loaded = r"""<(?:script|img|iframe)[^>]+src=["']?https?:|<link[^>]+rel=["']?stylesheet["']?[^>]+href=["']?https?:"""
    assert [name for name, text in pages.items() if re.search(loaded, text)] == []


@pytest.mark.parametrize("page", ["docs/start/python.md", "README.md"])
def test_first_wait_with_the_python_client(page: str, daemon: DaemonProcess) -> None:
    """The program on the page prints the output shown on the page."""
    [program] = blocks(ROOT / page, "python")
    [printed] = re.findall(r"It prints `([^`]+)`", (ROOT / page).read_text("utf-8"))
    program = program.replace("127.0.0.1:7440", daemon.address)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (answer.stdout.strip(), answer.stderr) == (printed, "")


def test_links_lead_somewhere() -> None:
    """Every relative link on our pages leads to an existing file."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))]
    dead = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert links
    assert dead == []


def test_first_wait_with_curl(daemon: DaemonProcess) -> None:
    """The two commands on the page work, apart from the ports: curl waits and gets an answer."""
    [command] = blocks(START / "curl.md", "sh")
    assert "127.0.0.1:7441" in command
    waiting = subprocess.Popen(
        ["sh", "-c", command.replace("127.0.0.1:7441", daemon.http_address)], stdout=subprocess.PIPE, text=True
    )
    advance_as_told(START / "curl.md", daemon)
    answer, _ = waiting.communicate(timeout=60)
    assert '"OUTCOME_SATISFIED"' in answer


@pytest.mark.xdist_group("strangers")
@pytest.mark.parametrize(
    ("page", "build"),
    [("go.md", build_go), ("java.md", build_java), ("typescript.md", build_typescript)],
    ids=["go", "java", "typescript"],
)
def test_first_wait_in_another_language(page: str, build: Callable[[], list[str]], daemon: DaemonProcess) -> None:
    """After the build, the last command on the page prints the output shown on the page."""
    BUILT.mkdir(parents=True, exist_ok=True)
    build()
    [commands] = blocks(START / page, "sh")
    [printed] = blocks(START / page, "text")
    folder, *_, last = commands.splitlines()
    assert "127.0.0.1:7440" in last
    waiting = subprocess.Popen(
        ["sh", "-c", f"{folder} && {last.replace('127.0.0.1:7440', daemon.address)}"],
        cwd=ROOT,
        env={**os.environ, "PATH": tool_path()},
        stdout=subprocess.PIPE,
        text=True,
    )
    advance_as_told(START / page, daemon)
    answer, _ = waiting.communicate(timeout=120)
    assert sorted(answer.splitlines()) == printed.splitlines()
