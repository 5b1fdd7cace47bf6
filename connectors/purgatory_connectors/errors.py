"""Errors of sources. Each message is one line that contains the remedy."""


class SourceError(Exception):
    """Base of all errors of this package."""


class SourceRefused(SourceError):
    """An error that no retry can fix: an invalid setting or a missing right. The program exits."""


class ExtraMissing(SourceRefused):
    """The client library of the source is not installed."""


class NoTimeLookup(SourceError):
    """The source never knows where its logs ended at a time in the past."""


class SourceStale(SourceError):
    """The source cannot see its system at the moment. Raised by requests that need a current reading."""
