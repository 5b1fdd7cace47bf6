"""Errors of the input or the command line. Every message is one line with the remedy."""


class PipelineError(Exception):
    """The input or the command is invalid. The command line prints the message without a traceback and exits with 2."""


class JavaMissing(PipelineError):
    """Spark needs Java, and no recent enough version was found."""


class SettingInvalid(PipelineError):
    """Not a Spark setting, or a setting in the wrong place."""


class WindowInvalid(PipelineError):
    """`--since` or `--until` is not an instant, or the window between them is empty."""


class ArchiveUnusable(PipelineError):
    """The archive is missing, empty, damaged, of another schema version, or not an archive."""


class PolicyInvalid(PipelineError):
    """An unknown option of a policy or report, or a value out of range."""


class PackingFailed(PipelineError):
    """The packed environment cannot be written."""
