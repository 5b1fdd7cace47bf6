"""Checksums of a whole archive file, stored in the file's metadata: one for everything before the footer, one for the
footer itself.

Parquet's own checksums cover only the content of pages. They cover neither the page headers nor the footer, whose
statistics decide which files are read at all.
"""

from typing import Final
from zlib import crc32

KEY: Final = b"purgatory.crc32"
UNSEALED: Final = b"-" * 16
"""Value of KEY in a file without checksums. It has the same length as the checksums, so they can overwrite it in place.
"""
_TAIL: Final = 8
"""Bytes after the footer: its length and Parquet's magic number."""


class ChecksumWrong(OSError):
    """A file has changed since it was written."""


def footer_bytes(octets: bytes) -> int:
    """Size of the footer in bytes, including `_TAIL`, read from the length field at the end of the file."""
    return int.from_bytes(octets[-_TAIL:-4], "little") + _TAIL


def sealed(octets: bytes) -> bytes:
    """The file with its checksums filled in; it must have been encoded with KEY set to UNSEALED."""
    start = len(octets) - footer_bytes(octets)
    place = octets.index(UNSEALED, start)
    view = memoryview(octets)
    # The footer is summed while it still contains UNSEALED, so `check_footer` puts UNSEALED back before it compares.
    sums = f"{crc32(view[:start]):08x}{crc32(view[start:]):08x}".encode()
    return b"".join([view[:place], sums, view[place + len(sums) :]])


def check_footer(tail: bytes, metadata: dict[bytes, bytes]) -> None:
    """Check the footer of a file; `tail` must end with it.

    Files without checksums pass.

    Raises:
        ChecksumWrong: The footer is damaged.
    """
    sums = metadata.get(KEY, UNSEALED)
    footer = tail[-footer_bytes(tail) :].replace(sums, UNSEALED, 1)
    if sums != UNSEALED and sums[8:] != f"{crc32(footer):08x}".encode():
        raise ChecksumWrong("the checksum of its footer is wrong: the file is damaged")


def check_file(octets: bytes, metadata: dict[bytes, bytes]) -> None:
    """Check a whole file.

    Files without checksums pass.

    Raises:
        ChecksumWrong: The footer or the pages are damaged.
    """
    check_footer(octets, metadata)
    sums, pages = metadata.get(KEY, UNSEALED), memoryview(octets)[: -footer_bytes(octets)]
    if sums != UNSEALED and sums[:8] != f"{crc32(pages):08x}".encode():
        raise ChecksumWrong("the checksum of its pages is wrong: the file is damaged")
