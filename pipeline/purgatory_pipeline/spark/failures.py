"""Spark's failures in one line: what happened, without the stack traces of two languages around it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from purgatory_pipeline import errors

_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_JAVA_CLASS = re.compile(r"^:? ?(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error): ")


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Re-raises a `PipelineError` that was raised on an executor as itself, in place of Spark's error around it."""
    try:
        yield
    except Exception as error:
        name, _, message = root_cause(error).partition(": ")
        kind = getattr(errors, name.removeprefix(f"{errors.__name__}."), None) if is_spark_error(error) else None
        if not (isinstance(kind, type) and issubclass(kind, errors.PipelineError)):
            raise
        raise kind(message) from error


def is_spark_error(error: BaseException) -> bool:
    """True for errors of PySpark and of its bridge to Java."""
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}


def root_cause(error: BaseException | str) -> str:
    """The innermost cause of a failure, or of its text, as one line.

    That is the last line of a Python traceback from an executor, else Java's last `Caused by`.
    """
    said = str(error).strip()
    if "Traceback (most recent call last)" in said:
        return _raised(said[said.rindex("Traceback (most recent call last)") :])
    causes = _CAUSE.findall(said)
    lines = said.splitlines() or [type(error).__name__]
    java = [line for line in lines if _JAVA_CLASS.match(line)]
    line = causes[-1] if causes else (java or lines)[0]
    return _JAVA_CLASS.sub("", line).strip()


def _raised(stack: str) -> str:
    """The line of a Python traceback that names the exception: the first that is not indented, after the head."""
    lines = stack.splitlines()[1:]
    return next((line.strip() for line in lines if line.strip() and not line[0].isspace()), lines[-1].strip())
