"""The table of limits in docs/security.md has a row for each limit that one caller could use up for others."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.service.setting_sources import setting_groups

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "security.md"
HEAD: Final = "| limit | one caller has | what happens there | what happens at the limit |"
NAME: Final = re.compile(r"`([a-z_]+\.\w+)`")
BOUND: Final = re.compile(r"(sizes\.)?[A-Z][A-Z_]*(?<!_S)(?<!_MS)(_MAX|_KEPT)")

OF_ONE_CALLER: Final = {
    "partition.ENTRIES_MAX": "one partition",
    "positions.OFFSET_MAX": "one partition",
    "ranking.NAMES_MAX": "one ranking",
    "sizes.WEBHOOKS_OPEN_MAX": "one session",
    "sizes.REFUSED_ID_RANGES_MAX": "one session",
    "sizes.CONTROL_MESSAGES_MAX": "one stream",
    "connect_codecs.TEXT_BYTES_MAX": "one request",
    "flood_watch.RESETS_MAX": "one connection",
}
OF_NO_CALLER: Final = {
    "files.BATCHES_WAITING_MAX": "batches of all callers, in the archive's process",
    "end_history.ENDS_MAX": "ends of one log",
    "last_hour.SAMPLES_MAX": "totals of the daemon",
    "sizes.JOURNAL_CHANGE_ROWS_MAX": "rows that are then merged",
    "store.FREE_PAGES_KEPT": "pages of a file",
    "http_connection.MEMORY_KEPT": "a ratio",
    "refusal_log.SUBJECTS_MAX": "lines of the log",
    "site.HOSTS_KEPT": "names that were compared",
}

BY_VARIABLE: Final = {
    "archive_listener.QUEUE_ROWS_MAX",
    "batch_limits.EVENTS_MAX",
    "batch_limits.ITEMS_MAX",
    "batch_limits.OPERATIONS_MAX",
    "call_gate.CALLS_MAX",
    "call_gate.CALLS_PER_CALLER_MAX",
    "call_gate.CALLS_QUEUED_PER_CALLER_MAX",
    "extension.OWN_MAX",
    "grpc_options.CALLS_PER_CONNECTION_MAX",
    "grpc_options.CONNECTIONS_MAX",
    "http_connection.CONNECTIONS_MAX",
}
"""Constants that are compared with a variable, or through one."""


def table() -> dict[str, list[str]]:
    """The other cells of each row, by the names of its limits."""
    lines = PAGE.read_text("utf-8").splitlines()
    first = lines.index(HEAD) + 2
    found: dict[str, list[str]] = {}
    for line in lines[first : lines.index("", first)]:
        limits, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for name in NAME.findall(limits):
            assert name not in found, f"{name} has two rows"
            found[name] = cells
    return found


def settings() -> set[str]:
    """The settings that are maxima."""
    groups = setting_groups(ALL_SETTINGS).items()
    return {f"{group}.{name}" for group, model in groups for name in model.model_fields if name.endswith("_max")}


def internal() -> set[str]:
    """Constants that bound what an object or a module holds, as module.NAME."""
    paths = [path for path in (ROOT / "purgatory").rglob("*.py") if not {"v1", "cli", "generic"} & set(path.parts)]
    names = ((path.stem, name) for path in paths for name in bounds(ast.parse(path.read_text("utf-8"))))
    found = {name if "." in name else f"{stem}.{name}" for stem, name in names}
    declared = {f"{path.stem}.{name}" for path in paths for name in re.findall(r"(?m)^(\w+): Final", path.read_text())}
    return found | BY_VARIABLE & declared


def bounds(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Compare) and any(map(is_held, [node.left, *node.comparators])):
            yield from constants([node.left, *node.comparators])
        elif isinstance(node, ast.keyword) and re.fullmatch("maxlen|(?!.*bytes).*_max", node.arg or ""):
            yield from constants([node.value])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("may_add", "has_all", "lru_cache")):
            yield from constants(node.args)


def is_held(node: ast.expr) -> bool:
    """Whether it is the number of elements, or a counter, of an object or a module."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len":
        return ast.unparse(node.args[0]).startswith(("self.", "_"))
    return ast.unparse(node).startswith("self.")


def constants(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        for name in ast.walk(node):
            if isinstance(name, ast.Name | ast.Attribute) and BOUND.fullmatch(ast.unparse(name)):
                yield ast.unparse(name)


def test_every_limit_has_a_row() -> None:
    """A limit in the settings, or a constant that bounds what all callers have in common, has a row, and no other."""
    found = internal()
    assert set(OF_ONE_CALLER) | set(OF_NO_CALLER) <= found, "a constant that is no longer there"
    assert set(table()) == settings() | found - set(OF_ONE_CALLER) - set(OF_NO_CALLER)


def test_every_row_says_what_happens() -> None:
    """Each row has a share, or says that there is none, and what happens at the share or at the limit."""
    for name, cells in table().items():
        assert len(cells) == 3, name
        share, at_the_share, at_the_limit = cells
        assert re.search(r"a share|an equal part|no share|all of it|^\d+$", share), f"{name}: {share}"
        assert at_the_share or at_the_limit, name
