"""What can be wrong with a journal."""


class JournalError(Exception):
    """The journal cannot be used. The message is one line that names the folder and says what to do."""


class JournalLocked(JournalError):
    """Another process is using the folder."""


class JournalTooNew(JournalError):
    """The journal was written by a newer version of this program."""


class JournalDamaged(JournalError):
    """A row, or the file, is not what was written: see `purgatory journal check` and `repair`."""
