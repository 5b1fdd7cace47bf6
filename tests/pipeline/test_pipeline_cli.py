"""The command line of the pipeline: settings, exit codes, one-line errors, printed results; the packed environment."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest
from purgatory_pipeline import cli, location
from purgatory_pipeline.errors import ArchiveUnusable, PipelineError
from purgatory_pipeline.replay.command import outcome_lines
from purgatory_pipeline.report.advice import advise
from purgatory_pipeline.report.command import advised, window_for
from purgatory_pipeline.spark import spark_session
from purgatory_pipeline.time_arguments import parse_span_ms, parse_window
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from tests.kit.recorded import assert_recorded, assert_values_recorded, cases_of
from tests.pipeline.archive.histories import START, small_history
from tests.pipeline.conftest import worker_environment

REFUSED = Path(__file__).with_name("refused.txt")


def test_invalid_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in refused.txt. Spark is not started, and nothing is set for it."""

    def said(command: str) -> str:
        assert cli.main(shlex.split(command)) == cli.EXIT_UNUSABLE
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)
        return shown.err.replace("9" * 5_000, "<9*5000>").rstrip("\n")

    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert_recorded(REFUSED, map(said, cases_of(REFUSED)))
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "pyspark-shell"


@pytest.mark.parametrize("command", ["report", "replay"])
def test_an_unusable_output_folder_is_reported_first(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_history().write(tmp_path / "archive")
    (tmp_path / "out").write_text("x")
    assert cli.main([command, str(tmp_path / "archive"), "--out", str(tmp_path / "out")]) == cli.EXIT_UNUSABLE
    assert capsys.readouterr().err.startswith(f"purgatory-pipeline: cannot write to {tmp_path}/out: ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["check"], ["check", "x", "--colour"]])
def test_wrong_usage_is_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == cli.EXIT_UNUSABLE
    assert "see purgatory-pipeline" in capsys.readouterr().err


def test_help_lists_commands_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for word in ("advise", "check", "replay", "report", "stream", "--master", "--conf"):
        assert word in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('openjdk version "17.0.9" 2023-10-17', ""),
        ('openjdk version "21" 2023-09-19', ""),
        ('openjdk version "11.0.20" 2023-07-18', "is Java 11. Spark needs Java 17 or newer: install it"),
        ('java version "1.8.0_392"', "is Java 8. Spark needs Java 17"),
        ("cannot execute binary file", r"is not a working Java \(cannot execute binary file\)\. Spark needs"),
        ("", r"^no Java found \(.*java\)\. Spark needs Java 17 or newer: install it .*$"),
    ],
)
def test_java_is_17_or_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: str) -> None:
    """All formats of the version are read; an old, missing or broken Java is named, with the package to install."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if words:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
        java.chmod(0o755)
    if not said:
        assert spark_session.java_version() >= spark_session.JAVA_MIN
        return
    with pytest.raises(PipelineError, match=said):
        spark_session.java_version()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match=r"^no Java found \(java\)\. "):
        spark_session.java_version()


def test_settings_reach_spark_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.a=1 pyspark-shell")
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    spark_session.pass_settings("spark://here:7077", ["spark.a=2 3", "spark.pyspark.python=./environment/bin/python"])
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == (
        "--conf spark.a=1 --master spark://here:7077 --conf 'spark.a=2 3' "
        "--conf spark.pyspark.python=./environment/bin/python pyspark-shell"
    )
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


def test_spark_submit_takes_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(PipelineError, match="put them before the script"):
        spark_session.pass_settings("local[1]", [])


def listening_addresses(pid: int) -> set[str]:
    """The addresses on which a process listens, in hexadecimal as in /proc/net/tcp."""
    sockets = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    tables = [Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


@pytest.mark.slow  # starts Spark
def test_settings_of_the_user_win_over_ours(java: int) -> None:
    """A local session serves no page, listens on loopback only, and writes nothing of its own on stderr."""
    program = (
        "import json; from purgatory_pipeline.spark.spark_session import pass_settings, spark_session, stop_session;"
        "pass_settings('local[1]', ['spark.driver.host=localhost', 'spark.sql.session.timeZone=Asia/Tokyo']);"
        "spark = spark_session('settings'); context = spark.sparkContext; read = spark.conf.get;"
        "print(json.dumps([context.master, read('spark.sql.session.timeZone'), read('spark.driver.host'),"
        " read('spark.sql.execution.arrow.pyspark.enabled'), context.appName, context.uiWebUrl,"
        " context._gateway.proc.pid]), flush=True);"
        "input(); stop_session()"
    )
    environment = {**os.environ, **worker_environment()}
    del environment["SPARK_LOCAL_IP"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, env=environment, **pipes) as process:  # type: ignore[call-overload]
        line = process.stdout.readline()
        addresses = listening_addresses(json.loads(line)[-1]) if line and sys.platform == "linux" else {"0100007F"}
        _, stderr = process.communicate("\n")
    assert json.loads(line)[:-1] == ["local[1]", "Asia/Tokyo", "localhost", "true", "settings", None], stderr
    assert [line for line in stderr.splitlines() if line and "incubator" not in line] == []  # Java's own warning
    assert {address[-8:] for address in addresses} == {"0100007F"}, addresses


@pytest.mark.parametrize(("master", "cores", "partitions"), [("local[*]", 2, 8), ("yarn", 2, 200), ("yarn", 96, 384)])
def test_shuffle_partitions_follow_the_cores(master: str, cores: int, partitions: int) -> None:
    """On one machine the cores decide; on a cluster there are at least Spark's default, as cores may be added."""
    context = SimpleNamespace(master=master, defaultParallelism=cores)
    asked = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(get=lambda name: "200"))
    assert spark_session._shuffle_partitions(cast(SparkSession, asked)) == partitions


@pytest.mark.slow  # asks Spark
def test_command_uses_the_session_that_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = spark.conf.getAll
    paths = small_history().write(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "broken.parquet").write_bytes(b"PAR1")
    events = next(path for path in paths if "events" in path.parts)
    (tmp_path / "events" / "copy.parquet").write_bytes(events.read_bytes())
    until = f"{START:%Y-%m-%dT%H:%M:%S}.100Z"
    assert cli.main(["check", str(tmp_path), "--until", until, "--topic", "orders"]) == 0
    shown = capsys.readouterr().out
    assert "in 82 rows = used 29 + set aside 53" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["events", "copy", "of", "another", "file", "1", "20"] in lines
    assert ["calls", "unreadable", "1", "?"] in lines
    assert "1 run (1 ended)" in shown
    assert f"set aside {tmp_path}/notes.txt: in no table's folder" in shown
    assert spark.range(3).count() == 3
    assert spark.conf.getAll == before


@pytest.mark.slow  # asks Spark
def test_failure_of_spark_is_one_line_and_exit_1(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Python or Java is shortened to its cause; with PURGATORY_TRACEBACK=1 it is raised."""

    def fail(*, java: bool) -> None:
        if java:
            spark.sql("select raise_error('the disk is full')").collect()
        spark.range(1).rdd.map(lambda row: row.id // 0).collect()

    for java, said in ((False, "ZeroDivisionError: "), (True, "the disk is full")):
        monkeypatch.setattr(cli, "app", lambda java=java, **_: fail(java=java))
        monkeypatch.delenv(cli.TRACEBACK, raising=False)
        assert cli.main(["any"]) == cli.EXIT_FAILED
        shown = capsys.readouterr().err
        assert said in shown
        assert shown.count("\n") == 1
        monkeypatch.setenv(cli.TRACEBACK, "1")
        with pytest.raises(PySparkException, match=said):
            cli.main(["any"])


def failing(error: BaseException) -> Callable[..., None]:
    def fail(**_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "bug", [ZeroDivisionError(), ModuleNotFoundError(name="purgatory_pipeline.x")], ids=lambda bug: type(bug).__name__
)
def test_a_bug_is_raised_with_its_traceback(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", failing(bug))
    with pytest.raises(type(bug)):
        cli.main([])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), cli.EXIT_INTERRUPTED, "interrupted"),
        *(
            (ModuleNotFoundError(name=name), 2, f"{name} is not installed: pip install 'purgatory-waits[pipeline]'")
            for name in ("pyspark", "pyarrow")
        ),
    ],
)
def test_an_error_that_a_user_can_fix_is_one_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", failing(error))
    assert cli.main([]) == code
    assert capsys.readouterr().err == f"purgatory-pipeline: {said}\n"


def python_exception(last_line: str) -> PythonException:
    stack = 'Traceback (most recent call last):\n  File "worker.py", line 1, in f\n    g()\n'
    return PythonException(f"An exception was thrown from the Python worker:\n{stack}{last_line}\n")


def test_a_pipeline_error_from_an_executor_is_unwrapped() -> None:
    with pytest.raises(ArchiveUnusable, match=r"^a\.parquet: gone$"), spark_session.unwrapped_errors():
        raise python_exception("purgatory_pipeline.errors.ArchiveUnusable: a.parquet: gone")
    for line in ("ValueError: a", "purgatory_pipeline.errors.Unheard: a", "purgatory_pipeline.errors.annotations: a"):
        with pytest.raises(PythonException), spark_session.unwrapped_errors():
            raise python_exception(line)
    with pytest.raises(ArchiveUnusable), spark_session.unwrapped_errors():
        raise ArchiveUnusable("a")


def test_windows_are_instants_in_order() -> None:
    assert parse_window("", "") == (None, None)
    since, until = parse_window("2026-11-21T18:00:00", "2026-11-21T20:00:00+01:00")
    assert since == START
    assert until is not None
    assert (until - START).total_seconds() == 3600
    with pytest.raises(PipelineError, match="--since 2026-11-22 is not before --until 2026-11-21"):
        parse_window("2026-11-22", "2026-11-21")


PRINTED = Path(__file__).with_name("printed.txt")
USE = [{"timeout_ms": 500, "share": 1.0, "timeouts": 1, "operations": 1}]


def lines_of(waited_ms: list[int], fates: list[str], topic: str = "orders") -> str:
    counts = pd.DataFrame({"topic": topic, "kind": "produce", "fate": fates, "waited_ms": waited_ms, "operations": 1})
    counts["timeout_ms"] = counts["waited_ms"].where(counts["fate"] == "expired")
    in_use = {(None, "produce"): USE, ("orders", "produce"): USE}
    return "\n".join(advised(advise(counts, in_use)["advice"].to_pandas()))


def cut_at(timeout_ms: int, needs: list[int]) -> str:
    fates = ["satisfied" if need <= timeout_ms else "expired" for need in needs]
    return lines_of(np.minimum(needs, timeout_ms).tolist(), fates)


def window_of(seconds: int) -> int:
    return window_for(START, START + timedelta(seconds=seconds))


def test_advice_and_windows_are_printed_as_recorded() -> None:
    """As in printed.txt. A single topic is not repeated as "all topics"."""
    names = {"cut_at": cut_at, "lines_of": lines_of, "window_of": window_of, "window_for": window_for}
    names |= {"parse_span_ms": parse_span_ms, "spark_path": spark_path}
    assert_values_recorded(PRINTED, names)
    with pytest.raises(PipelineError, match=r"--delay .*: not a duration"):
        parse_span_ms("--delay", "9" * 5_000)


def spark_path(scheme: str, host: str, path: str) -> str:
    """Spark's own name of a file."""
    return location.Location(f"{scheme}://{host}", None, "", location.spark_prefix(scheme, host)).spark_path(path)


def test_kinds_that_no_policy_changes_take_one_line() -> None:
    rows = [
        (policy, None, kind, outcome, share, 1_300 if kind == "fetch" else 0)
        for policy, expired in (("", 0.25), ("produce:timeout_ms=5", 1.0), ("produce:timeout_ms=500", 0.25))
        for kind, outcome, share in (
            ("fetch", "satisfied", 1.0),
            ("produce", "satisfied", 1 - expired),
            ("produce", "expired", expired),
        )
    ]
    columns = ["policy", "topic", "kind", "outcome", "share", "in_doubt"]
    assert outcome_lines(pd.DataFrame(rows, columns=columns)) == [
        "fetch, unchanged and under every policy: 100.00 % satisfied (1,300 in doubt are left out)",
        "produce, unchanged: 75.00 % satisfied, 25.00 % expired",
        "produce, produce:timeout_ms=5: 100.00 % expired",
        "produce, produce:timeout_ms=500: 75.00 % satisfied, 25.00 % expired",
    ]
    alone = pd.DataFrame([("", None, "fetch", "expired", 1.0, 0)], columns=columns)
    assert outcome_lines(alone) == ["fetch, unchanged: 100.00 % expired"]
