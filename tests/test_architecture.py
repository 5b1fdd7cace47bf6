"""docs/modules.md is generated from module headers by `make docs`; docs/model.py runs and behaves like the engine."""

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from purgatory.engine.calls import Apply, Cancel, PassTime
from tests.engine import plain
from tests.engine.adapter import EngineUnderTest, event_batch, registration
from tests.parsing import parsed

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "modules.md"
MODEL = ROOT / "docs" / "model.py"
PACKAGES = ("purgatory", "client/purgatory_client", "connectors/purgatory_connectors", "pipeline/purgatory_pipeline")

HEAD = """\
# Modules

Generated from the module headers by `make docs`. [architecture.md](architecture.md) explains how they work together.
"""


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    text = ast.get_docstring(parsed(path.read_text("utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:]) (?=[A-Z])", paragraph)[0]
    return sentence.rstrip(".:").replace("|", r"\|")


def folders(package: Path) -> Iterator[Path]:
    yield package
    for folder in sorted(path for path in package.rglob("*") if (path / "__init__.py").is_file()):
        if "v1" not in folder.relative_to(ROOT).parts:
            yield folder


def modules_page() -> str:
    """The page: a section for each folder, a row for each module."""
    lines = [HEAD]
    for package in PACKAGES:
        for folder in folders(ROOT / package):
            lines += [f"## {folder.relative_to(ROOT)}", "", summary(folder / "__init__.py"), ""]
            modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
            if modules:
                rows = [f"| [`{path.stem}`](../{path.relative_to(ROOT)}) | {summary(path)} |" for path in modules]
                lines += ["| module | purpose |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def test_modules_page_is_current() -> None:
    """The page has a row for every module of the product; `make docs` rewrites it."""
    assert PAGE.read_text("utf-8") == modules_page()


def test_every_module_has_a_header() -> None:
    """No row of the page is empty."""
    assert [line for line in modules_page().splitlines() if line.endswith("|  |")] == []


def test_model_runs_and_names_modules_that_exist() -> None:
    """`python docs/model.py` prints how its two operations end, and each path in it exists."""
    run = subprocess.run([sys.executable, str(MODEL)], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "{1: (1, 'satisfied'), 2: (2, 'expired')}\n"
    paths = re.findall(r"\b(?:engine|service|purgatory)/[a-z_/]+(?:\.py)?", MODEL.read_text("utf-8"))
    assert paths
    for path in paths:
        place = ROOT / "purgatory" / path.removeprefix("purgatory/")
        assert place.exists() or place.with_suffix(".py").exists(), f"{path} is not in the tree"


MARKS = ("a", "b", "c")
REQUIRED = st.dictionaries(st.sampled_from(MARKS), st.integers(0, 9), min_size=1)
STEPS = st.one_of(
    st.tuples(st.just("register"), REQUIRED, st.integers(1, 9)),
    st.tuples(st.just("advance"), st.sampled_from(MARKS), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(1, 20), st.none()),
    st.tuples(st.just("sleep"), st.integers(1, 5), st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_model_behaves_like_the_engine(steps: list[tuple[str, object, object]]) -> None:
    """After the same steps, the same operations have ended in the same way."""
    model = runpy.run_path(str(MODEL))["Purgatory"]()
    engine = EngineUnderTest()
    owner, operation_id = engine.add_owner(), 0
    ended: dict[int, str] = {}
    for step, first, second in steps:
        if step == "register":
            assert isinstance(first, dict)
            assert isinstance(second, int)
            operation_id += 1
            items = tuple(plain.Item((mark, 0), value) for mark, value in first.items())
            engine.perform(owner, registration([plain.Operation(plain.PRODUCE, operation_id, second, items)]))
            model.register("app", operation_id, first, engine.now_ms + second)
        elif step == "advance":
            assert isinstance(second, int)
            value = model.marks.get(first, -1) + second
            event = plain.Event(plain.HIGH_WATERMARK, (str(first), 0), value)
            engine.perform(owner, Apply(event_batch([event])))
            model.advance(first, value)
        elif step == "cancel":
            assert isinstance(first, int)
            engine.perform(owner, Cancel([first]))
            model.cancel("app", first)
        else:
            assert isinstance(first, int)
            engine.now_ms += first
            engine.perform(owner, PassTime(1_000))
            model.expire(engine.now_ms)
        ended |= {row.operation_id: plain.OUTCOME_WORDS[row.outcome] for row in engine.take_ended()}
    results = model.results("app", 0).values() if "app" in model.sessions else ()
    assert dict(results) == ended


def uses(pattern: str, *globs: str) -> Counter[str]:
    """The number of matches in the files of the product, by file name."""
    paths = [path for glob in globs for path in ROOT.glob(glob)]
    return Counter(path.name for path in paths for _ in re.finditer(pattern, path.read_text("utf-8"), re.MULTILINE))


def test_there_is_no_lock_to_take_in_the_wrong_order() -> None:
    """Engine and service create no lock and no thread, except for a pool of threads in one module for large JSON texts,
    which share nothing; `purgatory.threads` runs calls that may hang, which share nothing either.

    The only locks belong to the embedded purgatory and the timer, one each.
    """
    locks = r"\b(?:R?Lock|Condition|(?:Bounded)?Semaphore|Barrier)\("
    threads = r"^ *(?:import|from) (?:threading|multiprocessing|concurrent\.futures|_thread)\b"
    core = ("purgatory/engine/**/*.py", "purgatory/service/**/*.py")
    assert uses(locks, *core) == {}
    assert uses(threads, *core) == {"connect_codecs.py": 1}
    around = ("purgatory/*.py", "purgatory/embedded/*.py", "purgatory/timer/*.py")
    assert uses(locks, *around) == {"threaded.py": 1, "tasks.py": 2}


def test_the_wall_clock_is_read_where_it_is_shown_and_nowhere_else() -> None:
    """Seventeen modules of daemon and client read the wall clock: six to display it, the archive to record it, the
    journal and the outbox because they outlive the machine's monotonic clock, three for tokens and certificates,
    which expire by it, two for webhooks, which are signed with it and answered with dates, one for the start of
    spans, and two for ends as of a time: which midnight was the last, and what is the future.
    """
    wall_clock = r"\btime\.time(?:_ns)?\b|\bdatetime\.(?:utc)?now\b|\bdate\.today\b"
    assert uses(wall_clock, "purgatory/**/*.py", "client/purgatory_client/**/*.py").keys() == {
        "continued_time.py", "host.py", "inspection_calls.py", "outbox_gate.py", "run_details.py",
        "tls.py", "commands.py", "tokens.py", "result_tail.py", "daemon_views.py", "signing.py",
        "wait_spans.py", "webhook_poster.py", "wait.py", "source_calls.py", "recent_ends.py",
        "mcp_tasks.py",
    }  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(modules_page(), encoding="utf-8")
