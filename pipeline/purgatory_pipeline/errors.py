"""What can be wrong with what the pipeline was given. Every message is one line that says what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """The input or the command cannot be used. The command line prints it without a traceback and exits with 2."""


class JavaMissing(PipelineError):
    """Spark runs on Java, and none that is new enough was found."""


class SettingInvalid(PipelineError):
    """A Spark setting that is none, or that was given in the wrong place."""


class WindowInvalid(PipelineError):
    """`--since` or `--until` is no instant, or what is between them is no window."""


class ArchiveUnusable(PipelineError):
    """The archive is missing, empty, of a newer version, or not an archive."""


class PolicyInvalid(PipelineError):
    """An unknown policy, or a value that it cannot have."""


class PackingFailed(PipelineError):
    """The archive of the environment cannot be written."""
