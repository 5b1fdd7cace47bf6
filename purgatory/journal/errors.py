"""Errors of the journal."""

from pathlib import Path


class JournalError(Exception):
    """The journal cannot be used. The message is one line with the folder and the remedy."""


class JournalTooNew(JournalError):
    """The journal was written by a newer version of this program."""


class JournalDamaged(JournalError):
    """The file or a row was changed, or groups are missing: `what`, without the folder and the remedies."""

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


def damaged(folder: Path, what: str) -> JournalDamaged:
    """The error for a journal that cannot be trusted. It names the remedies."""
    return JournalDamaged(
        f"the journal in {folder} is damaged: {what}. Run `purgatory journal check {folder}` for details. To continue, "
        "`purgatory journal import` your last export into an empty folder, or start with an empty folder: clients then "
        "register their waits again",
        what,
    )
