"""The peers on the JVM: built with Maven into .build/peers when their sources have changed, then started with java.

Maven downloads the published jars of Kafka and Netty by name the first time, and then uses its own store. Without Maven
or a JDK, these peers are reported as skipped, and the others still run.
"""

import hashlib
import shutil
import subprocess
from functools import cache
from typing import Final

from bench.measure.processes import ROOT, Worker

__all__ = ["JvmMissing", "jvm_command", "jvm_worker"]

SOURCES: Final = ROOT / "bench" / "peers" / "kafka"
BUILT: Final = ROOT / ".build" / "peers" / "jvm"
STAMP: Final = BUILT / "sources.sha256"
HEAP: Final = "-Xmx4g"


class JvmMissing(Exception):
    """The JVM peers cannot run on this machine. The message is the line to show."""


def jvm_worker(peer: str) -> Worker:
    """A worker with the workloads of a peer: "kafka", "netty", "util-timer" or "delay-queue". Raises JvmMissing."""
    return Worker(jvm_command(peer))


def jvm_command(peer: str) -> list[str]:
    """The command of that worker. Raises JvmMissing."""
    build()
    return ["java", HEAP, "-cp", f"{BUILT / 'classes'}:{BUILT / 'lib'}/*", "bench.Main", peer]


@cache
def build() -> None:
    """Build the peers unless they are up to date. Raises JvmMissing."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise JvmMissing(f"kafka and netty are skipped: {program} is not installed (a JDK from 17 on, and Maven)")
    digest = sources_digest()
    if STAMP.exists() and STAMP.read_text("utf-8") == digest:
        return
    command = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "compile"]
    if subprocess.run([*command, "-o"], cwd=ROOT, capture_output=True, check=False).returncode != 0:
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            lines = [line for line in built.stdout.splitlines() if "ERROR" in line]
            raise JvmMissing(f"kafka and netty are skipped: Maven failed: {lines[0] if lines else built.stderr[-300:]}")
    STAMP.write_text(digest, "utf-8")


def sources_digest() -> str:
    """A digest of the sources, stored next to the build to detect changes."""
    digest = hashlib.sha256()
    for path in sorted(p for p in SOURCES.rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def java_version() -> str:
    """The version, such as "openjdk 17.0.15"; empty if java is missing."""
    if shutil.which("java") is None:
        return ""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return " ".join(said.split("\n", 1)[0].replace('"', "").replace(" version", "").split(" ")[:2])
