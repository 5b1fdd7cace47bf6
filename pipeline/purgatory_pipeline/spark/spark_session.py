"""The Spark session of the commands: local on all cores unless Spark's own settings say otherwise."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from purgatory_pipeline import errors
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.spark.tasks import is_connect, parallelism

JAVA_MIN: Final = 17
INSTALL_JAVA: Final = (
    f"Spark needs Java {JAVA_MIN} or newer: install it (Debian, Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) or set JAVA_HOME"
)

_SUBMIT_ARGS: Final = "PYSPARK_SUBMIT_ARGS"
_SHELL: Final = "pyspark-shell"
"""The last of Spark's arguments when Python starts the JVM."""
_PYTHON_SETTING: Final = "spark.pyspark.python"
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
"""For `-Dlog4j2.configurationFile`: keeps Spark quiet."""
_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
_JVM_DEFAULTS: Final = {
    "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
    _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
}
_LOCAL_DEFAULTS: Final = {
    # One machine needs no network. By default Spark serves a page that can stop jobs on all interfaces, and its own
    # protocol on the first external one, both without authentication.
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Archives have many small files. Spark lists them again, in a job of that many tasks, by default up to 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}

REMOTE: Final = "SPARK_REMOTE"
"""Spark's variable with the address of a Spark Connect server: no Java is started then."""
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
SMALL_ROWS: Final = 200_000
"""Up to this many rows, Spark spends its time on starting, planning and compiling, and little of it on rows."""
_SHORT_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SMALL_JVM_DEFAULTS: Final = {
    # Java that runs for seconds: one compiler, no collection when the classes outgrow 21 MB, and no verification of
    # Spark's classes.
    _JAVA_OPTIONS: f"{_JVM_DEFAULTS[_JAVA_OPTIONS]} {_SHORT_JAVA} -XX:MetaspaceSize=256m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    # No functions of Spark's machine learning. Registering them takes a fifth of the time to start.
    "spark.sql.extensions.test.loadFromCp": "false",
}
_SMALL_DEFAULTS: Final = {
    _SHUFFLE_PARTITIONS: "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
SHUFFLE_PARTITIONS_PER_CORE: Final = 4
"""On one machine, where each of Spark's default 200 partitions would cost more than its work. On a cluster at least
those 200, since executors may join later; Spark coalesces small ones.
"""

OBSERVED_MARKS: Final = "marks"
"""Name of an observation (`frame.observe`) whose metrics the listener publishes as marks."""

_started = False
"""Whether we started the running session, and so must stop it."""


def java_version() -> int:
    """The major version of the Java that Spark would start. Raises `PipelineError`, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        raise PipelineError(f"no Java found ({java}). {INSTALL_JAVA}")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr.strip()  # noqa: S603
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None:
        raise PipelineError(f"{java} is not a working Java ({output.partition(chr(10))[0]}). {INSTALL_JAVA}")
    if int(version[1]) < JAVA_MIN:
        raise PipelineError(f"{java} is Java {version[1]}. {INSTALL_JAVA}")
    return int(version[1])


def pass_settings(master: str | None, settings: Sequence[str]) -> None:
    """Passes `--master` and `--conf NAME=VALUE` to the session, before it is started.

    Raises `PipelineError` for anything else, and under spark-submit, which takes these options itself.
    """
    if not master and not settings:
        return
    if started_by_spark():
        raise PipelineError("spark-submit takes --master and --conf: put them before the script")
    words = ["--master", master] if master else []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name.startswith("spark.") or not equals:
            raise PipelineError(f"--conf {setting}: not a Spark setting; expected spark.NAME=VALUE")
        if name == _PYTHON_SETTING:  # Spark itself looks at it in spark-submit only
            os.environ["PYSPARK_PYTHON"] = value
        words += ["--conf", setting]
    os.environ[_SUBMIT_ARGS] = shlex.join([*_submit_words(), *words, _SHELL])


def started_by_spark() -> bool:
    """True under spark-submit: the JVM is already running with all its settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def spark_session(name: str, *, rows: int | None = None) -> SparkSession:
    """A new session, in the Spark that is running or in a new one. A session that exists keeps its settings. Settings
    given to Spark (spark-submit --conf, spark-defaults) override ours.

    `rows`, if known, is the number of rows to read: for few, nothing is compiled that would pay only later.

    Raises `PipelineError`.
    """
    global _started  # noqa: PLW0603 -- a program has one session
    running = SparkSession.getActiveSession()
    small = rows is not None and rows <= SMALL_ROWS
    if running is None and not started_by_spark() and REMOTE not in os.environ:
        java_version()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _SHORT_JAVA)  # for the Java that puts the other's command together
        defaults = {**_JVM_DEFAULTS, **_SMALL_JVM_DEFAULTS} if small else _JVM_DEFAULTS
        ours = [word for key, value in defaults.items() for word in ("--conf", f"{key}={value}")]
        os.environ[_SUBMIT_ARGS] = shlex.join([*ours, *_submit_words(), _SHELL])
        session = SparkSession.builder.config(conf=_started_conf()).appName(name).getOrCreate()
    else:
        session = own_session(running) if running else SparkSession.builder.appName(name).getOrCreate()
    _started = _started or running is None
    given = session.conf.getAll if is_connect(session) else dict(session.sparkContext.getConf().getAll())
    of_size = _SMALL_DEFAULTS if small else {_SHUFFLE_PARTITIONS: str(_shuffle_partitions(session))}
    for key, value in {**_DEFAULTS, **of_size}.items():
        if key not in given:
            session.conf.set(key, value)
    return session


def own_session(session: SparkSession) -> SparkSession:
    """A session with the settings, the current schema and the listeners of this one; with Spark Connect this one.
    PySpark can neither clone a session nor list listeners.
    """
    if is_connect(session):  # PySpark takes some frames of a new one for the active session's
        return session
    own = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())  # noqa: SLF001
    for listener in session._jsparkSession.streams().listListeners():  # noqa: SLF001
        own._jsparkSession.streams().addListener(listener)  # noqa: SLF001
    return own


def _started_conf() -> SparkConf:
    """Starts the JVM. Returns the user's settings, with `_LOCAL_DEFAULTS` where Spark runs on this machine only."""
    SparkContext._ensure_initialized()  # noqa: SLF001 -- only a JVM reads spark-defaults.conf, which may name the master
    conf = SparkConf()
    if conf.get("spark.master", "local[*]").startswith("local"):
        for key, value in _LOCAL_DEFAULTS.items():
            conf.setIfMissing(key, value)
    return conf


def _shuffle_partitions(session: SparkSession) -> int:
    for_cores = SHUFFLE_PARTITIONS_PER_CORE * parallelism(session)
    is_local = not is_connect(session) and (session.sparkContext.master or "").startswith("local")
    return for_cores if is_local else max(for_cores, int(str(session.conf.get(_SHUFFLE_PARTITIONS))))


def stop_session() -> None:
    """Stops the session that `spark_session` started; one that was there before stays."""
    global _started  # noqa: PLW0603 -- see spark_session
    session = SparkSession.getActiveSession()
    if _started and session is not None:
        session.stop()
    _started = False


def _submit_words() -> list[str]:
    """The arguments from the environment, without the last word."""
    words = shlex.split(os.environ.get(_SUBMIT_ARGS, ""))
    return words[:-1] if words[-1:] == [_SHELL] else words


_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^:? ?(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Re-raises a `PipelineError` from an executor as itself, instead of as the Spark error that wraps it."""
    try:
        yield
    except Exception as error:
        name, _, message = root_cause(error).partition(": ")
        kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None) if is_spark_error(error) else None
        if not (isinstance(kind, type) and issubclass(kind, errors.PipelineError)):
            raise
        raise kind(message) from error


def is_spark_error(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}


def root_cause(error: BaseException | str) -> str:
    """The innermost cause of an error, or of its text, as one line.

    This is the last line of a Python traceback from an executor, otherwise Java's last `Caused by`.
    """
    text = str(error).strip()
    if "Traceback (most recent call last)" in text:
        return _raised(text[text.rindex("Traceback (most recent call last)") :])
    causes = _CAUSE.findall(text)
    lines = text.splitlines() or [type(error).__name__]
    java = [line for line in lines if _JAVA_CLASS.match(line)]
    line = causes[-1] if causes else (java or lines)[0]
    return _JAVA_CLASS.sub("", line).strip()


def _raised(stack: str) -> str:
    """The line of a Python traceback that names the exception: the first line after the header that is not indented."""
    lines = stack.splitlines()[1:]
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), lines[-1].strip())
