"""Makes h11, which parses requests and the answers of other servers, take linear time for each line.

Two of its regular expressions backtrack: a header of 64 kB of spaces and one byte that is not allowed held the event
loop for half a minute, and the same in the extension of a chunk for ten seconds. Those here match the same lines
without backtracking, by possessive quantifiers; only a chunk's extension must not contain CR.
"""

import re
from typing import Final

from h11 import _abnf, _readers

_WORD: Final = f"{_abnf.field_vchar}++"
HEADER_FIELD: Final = (
    rf"(?P<field_name>{_abnf.field_name}):[ \t]*+(?P<field_value>(?:{_WORD}(?:[ \t]++{_WORD})*+)?+)[ \t]*+"
)
CHUNK_HEADER: Final = rf"(?P<chunk_size>{_abnf.chunk_size})(?P<chunk_ext>;[^\r\n]*+)?+[ \t]*+\r\n"


def make_h11_linear() -> None:
    """Replace the two expressions in the library. Call before the first connection; further calls change nothing."""
    _readers.header_field_re = re.compile(HEADER_FIELD.encode("ascii"))
    _readers.chunk_header_re = re.compile(CHUNK_HEADER.encode("ascii"))
