"""Spark's errors in one line: the cause, without the surrounding Python and Java stack traces."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from purgatory_pipeline import errors

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
    """True for errors of PySpark and of its bridge to Java."""
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
