"""The Spark session that the commands run on: local on all cores unless Spark's own settings say otherwise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from purgatory_pipeline.errors import JavaMissing

JAVA_MIN: Final = 17
INSTALL_JAVA: Final = (
    f"Spark needs Java {JAVA_MIN} or newer: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME"
)


def java_version() -> int:
    """The major version of the Java that Spark would start. Raises `JavaMissing`, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise JavaMissing(f"no Java found ({java}). {INSTALL_JAVA}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        raise JavaMissing(f"{java} is too old or not a Java: {said.strip().splitlines()[:1]}. {INSTALL_JAVA}")
    return int(version[1])


def spark_session(name: str) -> SparkSession:
    """The running session, or a new one. Settings given to Spark (spark-submit --conf, spark-defaults) win over ours.

    Raises `JavaMissing`.
    """
    java_version()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in _DEFAULTS.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}
