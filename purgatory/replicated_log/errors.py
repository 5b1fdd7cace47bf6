"""Errors of a fleet's log. Each message is one line that contains the remedy, if there is one."""


class FleetLogError(Exception):
    """Base of all errors of this package."""


class Fenced(FleetLogError):
    """Another daemon leads, so the entry does not count."""


class CutOff(FleetLogError):
    """The log did not answer in time. The entry that was being appended may be in the log or may still arrive there."""


class LogUnavailable(FleetLogError):
    """The log does not answer at the moment. If an entry was being appended, its outcome is unknown."""


class LogTrimmed(FleetLogError):
    """The entries asked for have been trimmed: start from the last snapshot."""


class LogLost(FleetLogError):
    """The log has lost entries, or this daemon's file belongs to another history. A person decides how to go on."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]}. Check the address of the log, and the log with `purgatory fleet verify`. To continue "
            "from the log, stop all daemons, empty their folders, and start them"
        )


class LogRefused(FleetLogError):
    """No retry can fix it: the log is missing, a setting of it is wrong, its address or an entry is invalid, or
    an entry was written by a newer version of this program, which must not guess.
    """
