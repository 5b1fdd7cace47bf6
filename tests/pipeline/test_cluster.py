"""Commands on a real Spark cluster of this machine. Its workers have only this project's packed environment."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import purgatory_pipeline
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from purgatory_pipeline.stream.payloads import file_packer
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.shard_task import OUTCOMES, play_payloads
from purgatory_pipeline.stream.wire_records import EVENT, OPERATION

import purgatory
from bench.pipeline.history.make import make_history
from bench.pipeline.history.plan import Plan
from tests.pipeline.conftest import FEW_ROWS, worker_environment
from tests.pipeline.standalone_cluster import HOME, StandaloneCluster
from tests.pipeline.stream.simulated_history import listed

pytestmark = pytest.mark.slow  # three Java processes, and three more for each command

SCRIPT = Path(purgatory_pipeline.__file__).parent / "cli.py"
OURS = ("purgatory", "purgatory_client", "purgatory_pipeline")
ALL_USED = re.compile(r"in ([\d,]+) rows = used \1 \+ set aside 0")
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
TIMEOUT_S = 600
OPERATIONS = 200
DELAY_MS = 2_000
"""The default."""


@pytest.fixture(scope="module")
def cluster(java: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers of one core each."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our packages only, packed as docs/pipeline.md says; the cluster has the other packages."""
    folder = tmp_path_factory.mktemp("packed") / "environment"
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for path in [Path(str(import_module(name).__file__)).parent for name in OURS]:
        shutil.copytree(path, site / path.name, ignore=shutil.ignore_patterns("__pycache__"))
    for library in Path(purgatory.__file__).parents[1].glob("purgatory_engine__mypyc*"):
        shutil.copy(library, site)
    return Path(shutil.make_archive(str(folder), "gztar", folder))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("history")
    make_history(Plan(OPERATIONS, runs=2), out)
    return out


@pytest.fixture
def settings(cluster: StandaloneCluster, environment: Path) -> list[str]:
    values = {
        "spark.archives": f"{environment}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": sysconfig.get_paths()["platlib"],  # packages that the cluster has
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        **FEW_ROWS,
    }
    words = [word for name, value in values.items() for word in ("--conf", f"{name}={value}")]
    return ["--master", cluster.url, *words]


def run(cluster: StandaloneCluster, command: list[str]) -> str:
    environment = {**os.environ, **worker_environment()}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT_S, cwd=cluster.folder
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cluster.logs()}"
    return done.stdout


def test_replay_runs_unchanged_on_the_cluster(
    cluster: StandaloneCluster, settings: list[str], history: Path, tmp_path: Path
) -> None:
    """With the console script and the options of spark-submit, executors replay the history on their packed engine."""
    script = Path(sys.executable).with_name("purgatory-pipeline")
    words = ["replay", str(history), "--set", "timeout_ms=*2", "--out", str(tmp_path / "out")]
    printed = run(cluster, [str(script), *words, *settings])
    assert ALL_USED.search(printed)
    assert "unchanged policy: 100 % of" in printed
    assert "timeout_ms=*2" in printed
    assert list((tmp_path / "out").glob("*.html"))


def test_stream_runs_unchanged_on_the_cluster(
    cluster: StandaloneCluster, settings: list[str], history: Path, tmp_path: Path
) -> None:
    """With spark-submit, two shards on two workers give each outcome once, equal to that of a single shard here."""
    submit = str(HOME / "bin" / "spark-submit")
    sides = {OPERATION: history / "registrations", EVENT: history / "events"}
    places = ["--registrations", str(sides[OPERATION]), "--events", str(sides[EVENT]), "--results", str(tmp_path)]
    run(cluster, [submit, *settings, str(SCRIPT), "stream", *places, "--shards", "2", "--once"])
    files = {path.name: pq.read_table(path) for path in (tmp_path / "outcomes").rglob("shard-*.parquet")}
    assert sorted(files) == ["shard-00000.parquet", "shard-00001.parquet"]
    assert {path.parent.name for path in cluster.folder.glob("work/*/app-*")} == {"worker-0", "worker-1"}
    packed = []
    for side, folder in sides.items():
        recorded = listed(folder, *sorted(folder.rglob("*.parquet")))
        packed.append(pa.Table.from_batches(file_packer(1, side, is_json=False)([recorded])))
    played = play_payloads(Shard(DELAY_MS), pa.concat_tables(packed))[OUTCOMES]
    assert played.num_rows > 0.9 * OPERATIONS
    assert as_words(pa.concat_tables(files.values())) == as_words(played)


def as_words(outcomes: pa.Table) -> list[str]:
    return sorted(map(repr, outcomes.to_pylist()))
