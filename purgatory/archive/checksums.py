"""Checksums of a whole archive file, kept in its own metadata: of everything before the footer, and of the footer.

Parquet's own checksums cover the content of pages. They cover neither the headers of pages nor the footer, whose
statistics decide which files are read at all.
"""

from typing import Final
from zlib import crc32

KEY: Final = b"purgatory.crc32"
UNSEALED: Final = b"-" * 16
"""The value of KEY in a file without checksums; theirs are as long, so they can take its place."""
_TAIL: Final = 8
"""Bytes after the footer: its length, and Parquet's magic."""


class ChecksumWrong(OSError):
    """The bytes of a file are not those that were written."""


def footer_bytes(octets: bytes) -> int:
    """How many bytes at the end of a file are its footer, by what it says itself."""
    return int.from_bytes(octets[-_TAIL:-4], "little") + _TAIL


def sealed(octets: bytes) -> bytes:
    """A file, encoded with KEY as UNSEALED, with its checksums."""
    start = len(octets) - footer_bytes(octets)
    place = octets.index(UNSEALED, start)
    view = memoryview(octets)
    sums = f"{crc32(view[:start]):08x}{crc32(view[start:]):08x}".encode()
    return b"".join([view[:place], sums, view[place + len(sums) :]])


def check_footer(tail: bytes, metadata: dict[bytes, bytes]) -> None:
    """Check the footer of a file. `tail` ends with it. Files without checksums pass. Raises `ChecksumWrong`."""
    sums = metadata.get(KEY, UNSEALED)
    footer = tail[-footer_bytes(tail) :].replace(sums, UNSEALED, 1)
    if sums != UNSEALED and sums[8:] != f"{crc32(footer):08x}".encode():
        raise ChecksumWrong("the checksum of its footer is wrong: the file is damaged")


def check_file(octets: bytes, metadata: dict[bytes, bytes]) -> None:
    """Check a whole file. Files without checksums pass. Raises `ChecksumWrong`."""
    check_footer(octets, metadata)
    sums, pages = metadata.get(KEY, UNSEALED), memoryview(octets)[: -footer_bytes(octets)]
    if sums != UNSEALED and sums[:8] != f"{crc32(pages):08x}".encode():
        raise ChecksumWrong("the checksum of its pages is wrong: the file is damaged")
