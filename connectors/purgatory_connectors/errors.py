"""Errors of sources. Each message is one line that contains the remedy."""


class SourceRefused(Exception):
    """An error that no retry can fix: an invalid setting, a missing right or client library. The program exits."""


class NoTimeLookup(Exception):
    """The source never knows where its logs ended at a time in the past."""


class SourceStale(Exception):
    """The source cannot see its system at the moment. Raised by requests that need a current reading."""
