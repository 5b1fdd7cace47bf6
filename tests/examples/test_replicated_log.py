"""The replicated-log example: its real processes, of which a follower is killed midway.

The other examples: those that connect to a running daemon, or that run by themselves, and the recipes.
"""

import ast
import contextlib
import inspect
import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from purgatory_client import AsyncClient, waits

from examples.local_daemon import serving
from examples.long_poll import ask
from examples.long_poll import serving as serving_polls
from examples.replicated_log.proof import read_counters
from purgatory.extensions.archive.schema import OUTCOMES
from tests.archive.archive_kit import Replay, rows_of, without
from tests.kit.daemon import DaemonProcess, children_of, daemon_environment, is_running
from tests.kit.eventually import PATIENCE_S, wait_until
from tests.kit.programs import run_program
from tests.parsing import parsed

pytestmark = pytest.mark.slow


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.replicated_log", *arguments]
    return run_program(command, code=None, cwd=PROJECT, env=ENVIRONMENT, timeout_s=SECONDS_MAX)


@pytest.fixture
def odd_lines(tmp_path: Path) -> Path:
    """Hundreds of lines of all kinds: empty, long, not UTF-8, with carriage returns and NULs; no newline at the end."""
    source = random.Random(7)
    lines = [source.randbytes(source.randrange(200)).replace(b"\n", b" ") for _ in range(200)]
    lines += [b"", b"\r", b"\xff\xfe", b"\x00" * 40, b"long " * 20_000, "straße ☃".encode(), b"", b"same", b"same"] * 8
    source.shuffle(lines)
    path = tmp_path / "odd lines.log"
    path.write_bytes(b"\n".join([*lines, b"the last line has no newline"]))
    return path


def test_the_history_of_a_run_replays(odd_lines: Path, tmp_path: Path) -> None:
    """With a follower killed midway, consumer and followers store exactly the bytes that were sent. A new engine fed
    with the archive ends every wait in the same way.
    """
    folder = tmp_path / "history"
    run = run_demo("--input", str(odd_lines), "--kill-follower", "--archive", str(folder))
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert "FAIL" not in run.stdout
    assert "proven: every record arrived once" in run.stdout
    assert len(re.findall(r"^ok {4}log of replica \d", run.stdout, re.MULTILINE)) == 6, run.stdout
    assert len(re.findall(r"^ok {4}/metrics", run.stdout, re.MULTILINE)) == 4, run.stdout
    assert "killed follower" in run.stdout
    outcomes = rows_of(folder, OUTCOMES)
    assert sum(row["kind"] == "produce" for row in outcomes) == len(odd_lines.read_bytes().split(b"\n"))
    assert without(Replay(folder).outcomes, "at") == without(outcomes, "at")


def test_lost_answers_repeat_only_records_without_sequence_numbers(odd_lines: Path) -> None:
    """One request in flight keeps the order of each key; sequence numbers keep it and repeat nothing, with 64."""
    run = run_demo("--input", str(odd_lines), "--lose-answers")
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    found = re.findall(
        r"^ok .* (\d+) in flight: (\d+) records, (\d+) twice, (\d+) out of order", run.stdout, re.MULTILINE
    )
    (_, *plain), (_, *single), (_, *numbered) = [list(map(int, row)) for row in found]
    sent = len(odd_lines.read_bytes().split(b"\n"))
    assert [plain[0], single[0], numbered[0]] == [sent] * 3
    assert min(plain) > 0
    assert single[1] > 0
    assert [single[2], *numbered[1:]] == [0, 0, 0]
    assert not re.search(
        r" 0 (recognised|refused)", run.stdout.partition("\nok    sequence numbers")[2].partition("\n")[0]
    )


def test_follower_killed_as_soon_as_it_started_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "few lines"
    path.write_bytes(b"\n".join([b"%d" % number for number in range(8)]))
    assert run_demo("--input", str(path), "--kill-follower").returncode == 0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "No such file"), (b"", "0 lines"), (b"1\n2\n", "at least 8")],
    ids=["none", "empty", "short"],
)
def test_unusable_input_is_a_usage_error(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "input"
    if content is not None:
        path.write_bytes(content)
    run = run_demo("--input", str(path))
    assert run.returncode == 2
    assert complaint in run.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_interrupted_run_leaves_no_process(odd_lines: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "examples.replicated_log", "--input", str(odd_lines), "--kill-follower"]
    with subprocess.Popen(
        command, cwd=PROJECT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        children = set(said_pids(demo.stdout, until="killed follower"))
        started = {pid for pid in children_of(demo.pid) if pid}
        demo.send_signal(number)
        assert demo.wait(timeout=60) == 130
    assert len(started) >= 2, f"only {started} were running"  # the daemon and a follower
    wait_until(lambda: not any(map(is_running, started | children)), f"{started | children} have ended")


def test_on_a_terminal_a_load_runs_until_ctrl_c() -> None:
    """After the checks the page's address is printed, and waits of all kinds end in all ways, until Ctrl-C is typed:
    then the exit code is 0, no process is left, and no traceback is printed.
    """
    terminal, there = pty.openpty()
    # In a session of its own, whose terminal this is, so that a typed Ctrl-C is a signal.
    command = ["setsid", "--ctty", sys.executable, "-m", "examples.replicated_log"]
    with subprocess.Popen(command, cwd=PROJECT, env=ENVIRONMENT, stdin=there, stdout=there, stderr=there) as demo:
        os.close(there)
        try:
            written = ""
            while "in another terminal:" not in written:
                written += os.read(terminal, 65_536).decode()
            assert re.search(r"live page on http://\S+/\s.*proven: every record arrived once", written, re.DOTALL)
            started = children_of(demo.pid)
            [address] = re.findall(r"live page: http://(\S+)/", written)
            wanted = {"satisfied", "expired", "failed"}
            wait_until(lambda: wanted <= outcomes_at(address), "waits end in three ways")
            os.write(terminal, b"\x03")
            with contextlib.suppress(OSError):  # the terminal's other end is closed
                while more := os.read(terminal, 65_536):
                    written += more.decode()
            assert demo.wait(60) == 0
            assert "Traceback" not in written
            assert started
            wait_until(lambda: not any(map(is_running, started)), f"{started} have ended")
        finally:
            os.close(terminal)
            demo.kill()


def outcomes_at(address: str) -> set[str]:
    """How operations have ended at a daemon."""
    counters = read_counters(address).values()
    return {outcome for kind in counters for outcome, count in kind.outcomes.items() if count}


def said_pids(lines: Iterator[str], until: str) -> Iterator[int]:
    """The process ids in the output, up to and including the line that contains `until`."""
    for line in lines:
        yield from map(int, re.findall(r"\(pid (\d+)\)", line))
        if until in line:
            return
    raise AssertionError(f"the run ended before it said {until!r}")


PROJECT: Final = Path(__file__).resolve().parents[2]
ENVIRONMENT: Final = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "client")])}
"""The project and its client can be imported, installed or not."""
SECONDS_MAX: Final = 180
LONG: Final = "timeout_ms=60000"


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path) as served:
        yield served


def run_example(*arguments: str, address: str = "", code: int = 0) -> str:
    """Run an example program, which must exit with this code; returns its output. `address`: PURGATORY_ADDRESS."""
    environment = ENVIRONMENT | ({"PURGATORY_ADDRESS": address} if address else {})
    run = run_program([sys.executable, *arguments], code=code, cwd=PROJECT, env=environment, timeout_s=SECONDS_MAX)
    return run.stdout + run.stderr


async def test_first_wait_is_satisfied_at_its_offset(address: str) -> None:
    for printed in (
        run_example("examples/first_wait.py", address),
        run_example("examples/first_wait.py", address=address),
    ):
        assert printed.startswith("satisfied after ")
        assert printed.endswith("orders-3 has reached 42\n")


def test_first_wait_without_a_daemon_says_how_to_start_one() -> None:
    printed = run_example("examples/first_wait.py", address="127.0.0.1:1", code=1)
    failed, advice = printed.splitlines()
    assert "127.0.0.1:1: Connection refused" in failed
    assert advice == "Is a daemon running at 127.0.0.1:1? `make run` starts one."


async def test_order_desk_ships_new_orders_and_those_of_an_earlier_run(address: str, tmp_path: Path) -> None:
    outbox = tmp_path / "desk.db"
    printed = run_example("examples/order_desk.py", address, str(outbox))
    assert printed.splitlines() == ["0 orders of an earlier run", *(f"order-{i}: satisfied" for i in range(3))]
    async with AsyncClient(address, outbox=outbox) as client:
        await client.submit(waits.produce({"orders-3": 2}, timeout=60), tag="order-left")
    printed = run_example("examples/order_desk.py", address, str(outbox))
    assert printed.splitlines() == ["1 orders of an earlier run", "order-left: satisfied"]


def test_secure_demo_allows_and_refuses_each_call_as_expected() -> None:
    """Strangers cannot connect, members get the access that the policy grants, and no token is printed."""
    printed = run_example("-m", "examples.secure_demo")
    lines = printed.splitlines()
    assert lines[0].split()[:4] == ["caller", "shows", "asks", "for"]
    assert lines[-1] == "18 calls, 6 allowed; 0 not as they should be"
    assert sum("Unavailable" in line for line in lines) == 3
    assert "pgt_" not in printed


def test_long_poll_without_arguments_polls_itself() -> None:
    lines = run_example("examples/long_poll.py").splitlines()
    assert [line.rstrip() for line in lines] == ['poll: 200 ["hello"]', "nothing new within 200 ms: 204"]


def test_long_poll_answers_with_messages_or_says_why_not() -> None:
    """Existing messages at once and new ones on arrival; 503 for too many polls and at shutdown, else 204."""
    with ThreadPoolExecutor(2) as pool:
        with serving_polls(polls_max=2) as address:
            assert ask(address, "POST", "/rooms/lobby", "first") == (201, "")
            assert ask(address, "GET", f"/rooms/lobby?{LONG}") == (200, '["first"]')
            assert ask(address, "GET", "/rooms/lobby?after=1&timeout_ms=1") == (204, "")
            polls = [pool.submit(ask, address, "GET", f"/rooms/{room}?after=1&{LONG}") for room in ("lobby", "attic")]
            wait_until(lambda: ask(address, "GET", "/waiting") == (200, "2"))
            assert ask(address, "GET", f"/rooms/attic?{LONG}")[0] == 503
            ask(address, "POST", "/rooms/lobby", "second")
            assert polls[0].result(PATIENCE_S) == (200, '["second"]')
            assert not polls[1].done()
        assert polls[1].result(PATIENCE_S)[0] == 503


# The recipes of examples/recipes: each prints the lines at the end of its docstring.

RECIPES = sorted((PROJECT / "examples" / "recipes").glob("[!_]*.py"))
TOURS = [PROJECT / "examples" / name for name in ("wheel_tour.py", "group_join.py")]
LINES_MIN, LINES_MAX = 20, 60
CANNOT_RUN = 77
"""The exit code of a recipe that lacks a program such as PostgreSQL; its last line on stderr is the reason."""
assert RECIPES, "the folder is not found"


def printed_by(recipe: Path) -> str:
    """The output that the recipe's docstring promises."""
    text = inspect.cleandoc(ast.get_docstring(parsed(recipe.read_text("utf-8"))) or "")
    _, heading, lines = text.rpartition("\nPrints:\n")
    assert heading, f"the docstring of {recipe.name} does not end with `Prints:` and its lines"
    return inspect.cleandoc(lines)


@pytest.mark.parametrize("recipe", [*RECIPES, *TOURS], ids=lambda path: path.stem)
def test_recipe_prints_what_it_promises(recipe: Path, daemon: DaemonProcess) -> None:
    environment = {
        "PURGATORY_ADDRESS": daemon.address,
        "PURGATORY_HTTP_URL": f"http://{daemon.http_address}",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    command = [sys.executable, str(recipe)]
    run = run_program(command, code=None, cwd=PROJECT, env=daemon_environment(environment), timeout_s=SECONDS_MAX)
    if run.returncode == CANNOT_RUN:
        reason = run.stderr.strip().rpartition("\n")[2]
        needed = [name for name in os.environ if name.startswith("PURGATORY_REQUIRE_") and os.environ[name] == "1"]
        required = [name for name in needed if name.removeprefix("PURGATORY_REQUIRE_") in reason.upper()]
        assert not required, f"{required[0]}=1: {reason}"
        pytest.skip(reason)
    assert run.returncode == 0, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert run.stdout.strip() == printed_by(recipe)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_short_and_linked(recipe: Path) -> None:
    """A recipe has 20 to 60 lines and a `main`, and a page of docs links to it."""
    source = recipe.read_text("utf-8")
    assert LINES_MIN <= source.count("\n") <= LINES_MAX
    assert re.search(r"^(async )?def main\(", source, re.MULTILINE)
    pages = [page.read_text("utf-8") for page in (PROJECT / "docs").glob("*.md")]
    assert any(f"](../examples/recipes/{recipe.name})" in page for page in pages)
