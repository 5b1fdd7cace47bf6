"""Spark for the tests of the pipeline: one local session for the whole run, in one worker."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.spark.spark_session import LOGGING, java_version
from pyspark.sql import SparkSession

from purgatory.testing import RunningDaemon, daemon_in_process
from tests.kit.programs import skip_unless_required
from tests.quick_java import ensure_archive

ROOT = Path(__file__).parents[2]

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Without the second compiler Java keeps 48 MB for code, which all the tests together fill up. Hadoop starts a
    # `chmod` for each file, which is cheapest by VFORK.
    "spark.driver.extraJavaOptions": (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
        "-Djdk.lang.Process.launchMechanism=VFORK"
    ),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Tests have few rows, and other tests need the processors too."""

FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The default starts several processes for each file of a checkpoint, which takes half the time of a micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Set in the running session, not given to Spark: the commands take no settings of a user for them."""


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with daemon_in_process("--shutdown-grace-ms", "100") as running:
        yield running


@pytest.fixture(scope="session")
def java() -> int:
    """The version of the installed Java. Without one, the test is skipped, or fails with PURGATORY_REQUIRE_JAVA=1."""
    try:
        version = java_version()
    except PipelineError as missing:
        skip_unless_required("JAVA", missing)
    ensure_archive("spark", Path(pyspark.__file__).parent / "jars")
    return version


@pytest.fixture(scope="session")
def spark(java: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2], shared by all tests. Restore every setting that you change."""
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def start_spark(folder: Path) -> SparkSession:
    """The session of the tests, with its files in `folder`."""
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {**SETTINGS, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:  # inherited by executors
        for key, value in worker_environment().items():
            patch.setenv(key, value)
        session = builder.getOrCreate()
    for key, value in FEW_ROWS.items():
        session.conf.set(key, value)
    return session


def worker_environment() -> dict[str, str]:
    """Makes executors run this interpreter on this tree."""
    paths = [str(ROOT), str(ROOT / "client"), str(ROOT / "pipeline"), os.environ.get("PYTHONPATH", "")]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
