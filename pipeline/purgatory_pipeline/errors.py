"""Errors in the input or the command line. Every message is one line with a remedy."""


class PipelineError(Exception):
    """The input or the command cannot be used. The command line prints it without a traceback and exits with 2."""


class ArchiveUnusable(PipelineError):
    """The archive is missing, empty, written by a newer version, or not an archive."""
