"""Checksums of an archive file, stored in its metadata: one of everything before the footer, one of the footer.

Parquet's own checksums cover the content of pages. They cover neither the headers of pages nor the footer, whose
statistics decide which files are read at all.
"""

from typing import Final
from zlib import crc32

KEY: Final = b"purgatory.crc32"
UNSEALED: Final = b"-" * 16
"""Placeholder under KEY while a file is encoded. Checksums have the same length, so they can be written over it."""
_TAIL: Final = 8
"""Length of the trailer after the footer: the footer's length, and Parquet's magic."""


class ChecksumWrong(OSError):
    """A file was changed after it was written."""


def footer_bytes(octets: bytes) -> int:
    """The size of the footer in bytes, trailer included, as the file itself states it."""
    return int.from_bytes(octets[-_TAIL:-4], "little") + _TAIL


def sealed(octets: bytes) -> bytes:
    """Replaces UNSEALED in an encoded file by its checksums."""
    start = len(octets) - footer_bytes(octets)
    place = octets.index(UNSEALED, start)
    view = memoryview(octets)
    sums = f"{crc32(view[:start]):08x}{crc32(view[start:]):08x}".encode()
    return b"".join([view[:place], sums, view[place + len(sums) :]])


def check_footer(tail: bytes, metadata: dict[bytes, bytes]) -> None:
    """Checks a footer, given the `tail` of its file. Files without checksums pass. Raises `ChecksumWrong`."""
    sums = metadata.get(KEY, UNSEALED)
    footer = tail[-footer_bytes(tail) :].replace(sums, UNSEALED, 1)
    if sums != UNSEALED and sums[8:] != f"{crc32(footer):08x}".encode():
        raise ChecksumWrong("the checksum of its footer is wrong: the file is damaged")


def check_file(octets: bytes, metadata: dict[bytes, bytes]) -> None:
    """Checks a whole file. Files without checksums pass. Raises `ChecksumWrong`."""
    check_footer(octets, metadata)
    sums, pages = metadata.get(KEY, UNSEALED), memoryview(octets)[: -footer_bytes(octets)]
    if sums != UNSEALED and sums[:8] != f"{crc32(pages):08x}".encode():
        raise ChecksumWrong("the checksum of its pages is wrong: the file is damaged")
