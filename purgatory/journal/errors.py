"""What can be wrong with a journal.

- `JournalError`: one line that names the folder and says what to do
    - `JournalLocked`: another process is using it
    - `JournalTooNew`: a newer version of this program wrote it
    - `JournalDamaged`: a row or the file is not as written; see `purgatory journal check` and `repair`
"""


class JournalError(Exception):
    """The journal cannot be used. The message is one line that names the folder and says what to do."""


class JournalLocked(JournalError):
    """Another process is using the folder."""


class JournalTooNew(JournalError):
    """The journal was written by a newer version of this program."""


class JournalDamaged(JournalError):
    """A row, or the file, is not what was written."""
