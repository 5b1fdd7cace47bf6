"""Errors in the input or the command line. Every message is one line with a remedy."""


class PipelineError(Exception):
    """The input or the command cannot be used. The command line prints it without a traceback and exits with 2."""


class JavaMissing(PipelineError):
    """Spark needs Java, and no sufficiently new version was found."""


class SettingInvalid(PipelineError):
    """Not a Spark setting, or one given in the wrong place."""


class WindowInvalid(PipelineError):
    """`--since` or `--until` is not an instant, or the window between them is empty."""


class ArchiveUnusable(PipelineError):
    """The archive is missing, empty, written by a newer version, or not an archive."""


class PolicyInvalid(PipelineError):
    """An unknown policy, or a value out of its range."""


class PackingFailed(PipelineError):
    """The packed environment cannot be written."""
