"""`make test ARGS=tests/conformance` shows which client passed which case."""

import re
from collections import defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table of cases and clients. In a run of the whole suite this file is loaded too late for it."""
    endings: dict[str, dict[str, str]] = defaultdict(dict)
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            if found := re.search(r"test_a_client_follows_the_rule\[(\w+)-(\w+)", report.nodeid):
                endings[found[2]][found[1]] = outcome
    clients = sorted({client for case in endings.values() for client in case})
    if clients:
        terminalreporter.section("conformance")
        terminalreporter.write_line(f"{'':44}" + "".join(f"{client:12}" for client in clients))
    for case, by_client in endings.items():
        cells = (f"{by_client.get(client, '-'):12}" for client in clients)
        terminalreporter.write_line(f"{case:44}" + "".join(cells))
