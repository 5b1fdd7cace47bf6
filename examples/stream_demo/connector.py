"""Spark's connector for Kafka: four jars, downloaded by Maven into .build/spark-kafka-jars, or from
$SPARK_KAFKA_JARS.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from examples.kafka_cluster import ROOT, ClusterUnavailable

JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
"""Spark 4.3.0 has no released connector yet; this version works with it."""

# Without transitive dependencies: Spark provides them, and the connector requires a test jar that few mirrors have.
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><exclusions><exclusion>"
    "<groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)
POM: Final = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>purgatory</groupId>'
    "<artifactId>spark-kafka-jars</artifactId><version>1</version><dependencies>{}</dependencies></project>\n"
)


def connector_jars() -> list[Path]:
    """Paths for Spark's --jars, downloaded if missing. Raises ClusterUnavailable."""
    given = os.environ.get("SPARK_KAFKA_JARS")
    folder = Path(given) if given else ROOT / ".build" / "spark-kafka-jars"
    wanted = [folder / f"{name}-{version}.jar" for _, name, version in JARS]
    if all(jar.exists() for jar in wanted):
        return wanted
    if given or shutil.which("mvn") is None:
        raise ClusterUnavailable(f"not all of {', '.join(jar.name for jar in wanted)} are in {folder}, and no Maven")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(POM.format("".join(_DEPENDENCY.format(*jar) for jar in JARS)), "utf-8")
    fetch = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    done = subprocess.run(
        [*fetch, f"-DoutputDirectory={folder}"], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise ClusterUnavailable(f"Maven could not fetch Spark's connector: {(done.stdout + done.stderr)[-1000:]}")
    return wanted
