"""The texts stay in plain English: a list of odd phrases is counted by folder, in docstrings, comments and pages, and
in the messages of the product.

A limit is the level reached, in phrases per 1,000 words. Lower it after improving a folder; never raise it.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.parsing import parsed

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "README.md": 0.5,
    "CONTRIBUTING.md": 0.5,
    "SECURITY.md": 0.5,
    "docs": 2.0,
    "proto": 1.0,
    "purgatory": 1.0,
    "client": 1.0,
    "connectors": 1.0,
    "pipeline": 2.0,
    "bench": 1.0,
    "examples": 1.0,
    "tests": 2.0,
}
PHRASES = re.compile(
    r"\b(?:nobody|somebody|whoever|everybody|whatever|anew|but for|all but|thereby|likewise|meanwhile)\b"
    r"|\b(?:is|are|was|were|been|be) told\b|\bare to be\b|\bis to be\b|\bbeside (?:it|them|the|a|each)\b"
    r"|\b(?:of|for|to|with|by|from|in|on|until|after|than) (?:what|whom)\b|\bso (?:many|long) (?!as|that)"
    r"|\b(?:lies?|lay|stands?|stood) (?:in|at|there|beside|still)\b|\bhas come\b|\bto be called before\b",
    re.IGNORECASE,
)
MESSAGE_LIMITS = {"purgatory": 0.2, "client": 0.2, "connectors": 0.2, "pipeline": 1.0}
"""For messages: string literals of three words or more, such as errors, log lines, help and settings."""

MESSAGE_PHRASES = re.compile(
    PHRASES.pattern + r"|(?<!there )\bis no (?!longer|more)|\b(?:the most allowed|your share now|goes on|is seen)\b",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]+")


PYTHON_TEXT = re.compile(r'"""(.*?)"""|(?:^|\s)# (.*?)$', re.DOTALL | re.MULTILINE)
"""Docstrings, including those of attributes, and comments."""


def text_of(path: Path) -> str:
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        return "\n".join(match[1] or match[2] for match in PYTHON_TEXT.finditer(source))
    if path.suffix == ".proto":
        return "\n".join(re.findall(r"//(.*)", source))
    return re.sub(r"```.*?```|`[^`]*`", "", source, flags=re.DOTALL)


def files(name: str) -> list[Path]:
    if (ROOT / name).is_file():
        return [ROOT / name]
    found = [path for kind in ("*.py", "*.md", "*.proto") for path in (ROOT / name).rglob(kind)]
    found = [path for path in found if not {"node_modules", "target"} & set(path.parts)]
    return [path for path in found if "v1" not in path.parts or path.suffix == ".proto"]


def messages_of(path: Path) -> str:
    nodes = list(ast.walk(parsed(path.read_text("utf-8"))))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    strings = (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return "\n".join(text for text in strings if isinstance(text, str) and text.count(" ") > 1)


def check_plain(texts: Iterable[tuple[Path, str]], phrases: re.Pattern[str], limit: float) -> None:
    words, hits = 0, []
    for path, text in texts:
        words += len(WORD.findall(text))
        hits += [f"{path.relative_to(ROOT)}: {match[0]}" for match in phrases.finditer(text)]
    assert words, "no texts"
    assert len(hits) <= words * limit / 1_000, "\n".join([f"{1_000 * len(hits) / words:.1f} in 1,000", *hits[:50]])


@pytest.mark.parametrize("name", LIMITS)
def test_prose_is_plain(name: str) -> None:
    """A folder has at most as many odd phrases per 1,000 words as its limit."""
    others = (path for path in files(name) if path.name != Path(__file__).name)
    check_plain(((path, text_of(path)) for path in others), PHRASES, LIMITS[name])


@pytest.mark.parametrize("name", MESSAGE_LIMITS)
def test_messages_are_plain(name: str) -> None:
    """The messages of a folder have at most as many odd phrases per 1,000 words as its limit."""
    sources = (path for path in files(name) if path.suffix == ".py")
    check_plain(((path, messages_of(path)) for path in sources), MESSAGE_PHRASES, MESSAGE_LIMITS[name])
