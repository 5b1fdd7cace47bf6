"""The documentation as a site: it builds without warnings or other hosts, its links lead somewhere, and the code on
its first pages runs unchanged.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, texts
from tests.kit.daemon import DaemonProcess
from tests.kit.programs import run_program


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The pages of the site as HTML and as Markdown, and llms.txt, by their path in it. The build fails on warnings."""
    folder = tmp_path_factory.mktemp("site") / "built"
    run_program([sys.executable, "docs/build_site.py", str(folder)], cwd=ROOT, timeout_s=120)
    pages = folder / "site"
    built = [page for page in pages.rglob("*") if page.suffix in {".html", ".md", ".txt"}]
    built_pages = [page for page in built if page.name != "404.html"]  # its links are absolute
    return {str(page.relative_to(pages)): page.read_text("utf-8") for page in built_pages}


def test_site_needs_no_other_host(site: dict[str, str]) -> None:
    loaded = r"""<(?:script|img|iframe)[^>]+src=["']?https?:|<link[^>]+rel=["']?stylesheet["']?[^>]+href=["']?https?:"""
    assert [name for name, text in site.items() if re.search(loaded, text)] == []


def test_reference_has_every_call_and_json_name(site: dict[str, str]) -> None:
    """The reference is made from the contract: an entry for each RPC, and each field's name in JSON."""
    calls = re.findall(r"rpc (\w+)\(", (ROOT / "proto/purgatory/v1/purgatory_service.proto").read_text("utf-8"))
    assert calls
    assert [call for call in calls if f'<h4 id="{call.lower()}"' not in site["api.html"]] == []
    assert "<code>timeout_ms</code></td>\n<td><code>timeoutMs</code></td>" in site["api.html"]


def test_every_page_is_in_the_navigation(site: dict[str, str]) -> None:
    """Each page of docs/ is in the navigation of zensical.toml, which has the four parts of Diataxis, and is built."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]
    parts = {title: pages for entry in project["nav"] for title, pages in entry.items()}
    assert list(parts) == ["Home", "Tutorial", "How to", "Reference", "Explanation"]
    entries = [parts.pop("Home"), *(page for pages in parts.values() for entry in pages for page in entry.values())]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(entries) == sorted({*pages, "api.md"})
    assert {page.removesuffix(".md") + ".html" for page in entries} <= site.keys()


def test_links_within_the_site_lead_to_headings(site: dict[str, str]) -> None:
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in site.items()}
    dead = []
    for page, text in site.items():
        for target, anchor in re.findall(r'<a href="([^":#]+\.\w+)?(?:#([^"]+))?"', text):
            where = os.path.normpath(Path(page).parent / target) if target else page
            if where not in ids or (anchor and not anchor.startswith("__") and anchor not in ids[where]):
                dead.append(f"{page}: {target}#{anchor}")
    assert dead == []


def test_site_has_each_page_as_markdown_for_programs(site: dict[str, str]) -> None:
    listed = re.findall(r"^- \[.+\]\((.+)\)$", site["llms.txt"], re.MULTILINE)
    assert sorted(listed) == sorted(page for page in site if page.endswith(".md"))
    links = [(page, link) for page in listed for link in re.findall(r"\]\(([^)#:]+\.md)", site[page])]
    assert [link for page, link in links if os.path.normpath(Path(page).parent / link) not in site] == []


@pytest.mark.parametrize("page", ["docs/start/python.md", "README.md"])
def test_first_wait_with_the_python_client_prints_what_is_shown(page: str, daemon: DaemonProcess) -> None:
    [program] = texts(page, "python")
    [printed] = re.findall(r"It prints `([^`]+)`", (ROOT / page).read_text("utf-8"))
    program = program.replace("127.0.0.1:7440", daemon.address)
    answer = run_program([sys.executable, "-c", program], code=None)
    assert (answer.stdout.strip(), answer.stderr) == (printed, "")


def test_relative_links_lead_to_existing_files() -> None:
    links = [
        (page, link)
        for page in [*PAGES, ROOT / "CHANGELOG.md"]
        for link in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8"))
    ]
    dead = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert links
    assert dead == []


def test_first_wait_with_curl(daemon: DaemonProcess) -> None:
    """The two commands on the page work, apart from the ports: curl waits, and gets the answer that is shown."""
    page = "docs/start/curl.md"
    wait, advance = (text.replace("127.0.0.1:7441", daemon.http_address) for text in texts(page, "sh"))
    waiting = subprocess.Popen(["sh", "-c", wait], stdout=subprocess.PIPE, text=True)
    run_program(["sh", "-c", advance.replace("curl ", "curl --fail-with-body ")])
    answer, _ = waiting.communicate(timeout=60)
    [expected] = texts(page, "json")
    got, shown = (json.loads(text)["result"] for text in (answer, expected))
    got.setdefault("waitedMs", "0")  # left out if the mark came first
    assert {**got, "waitedMs": shown["waitedMs"]} == shown
