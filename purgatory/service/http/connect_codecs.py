"""Messages over HTTP, as protobuf or as JSON.

Each call inflates and decodes its request in its own turn (`Undecoded`), and encodes its answer (`ready`). JSON is
handled by Python code, about fifty times as slow as protobuf. Large JSON and gzip are processed in a thread, so that
the event loop is free every few milliseconds, and callers take turns there too (`FairThread`).
"""

import asyncio
import contextlib
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from connectrpc.codec import Codec
from connectrpc.compression import Compression
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from purgatory.service.errors import RpcError, invalid_argument, quoted, resource_exhausted, shortened
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.sessions.session import Turns

JSON_BYTES_MAX: Final = 1_048_576
"""Parsing JSON takes some twenty times its size in memory, and a second for a few megabytes."""
TEXT_BYTES_MAX: Final = 16_384
"""Maximum size of JSON that is parsed on the loop: a millisecond or two."""
SWITCH_INTERVAL_S: Final = 0.000_2
"""Set when the thread starts. With 5 ms, Python's default, each iteration of the event loop waits that long for it."""
MESSAGE_BYTES_MAX: Final = 4_096
"""Maximum protobuf size of messages that are converted to JSON on the loop."""
NAME_COMPARED_MAX: Final = 100
"""Only the start of an unknown name is compared: the time that takes grows with the square of the length."""

Result = TypeVar("Result")
OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a piece of work in the thread."""

# One thread: it must not take more of the interpreter than the event loop gets.
_THREAD: Final = ThreadPoolExecutor(1, "json", lambda: sys.setswitchinterval(SWITCH_INTERVAL_S))


async def off_loop(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


class FairThread:
    """The thread of `off_loop`. Callers take turns: each has at most one piece of work in its queue."""

    def __init__(self) -> None:
        self._turns: Final[WeakValueDictionary[str, Turns]] = WeakValueDictionary()

    async def run(self, caller: str, work: Callable[[], Result]) -> Result:
        # Weak: the turns of a caller exist while one of its calls refers to them.
        turns = self._turns.setdefault(caller, Turns())
        async with turns:
            return await off_loop(work)


class Deflated(bytes):
    """Bytes that are inflated in the call's turn."""


class Gzip(Compression):
    """For requests only. Answers are not compressed."""

    def name(self) -> str:
        return "gzip"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        raise AssertionError(f"answers are not compressed: {len(data)} bytes")

    def decompress(self, data: bytes | bytearray | memoryview, read_max_bytes: int | None = None) -> bytes:
        del read_max_bytes  # `Undecoded` inflates them
        # Only marked: the package calls this before the call has its turn.
        return Deflated(data)


def inflated(data: bytes, bytes_max: int) -> bytes:
    """Inflate one gzip member, up to one byte more than allowed. Further members are refused: each may be empty, and
    there can be 200,000 of them in 4 MB.
    """
    # 31: the gzip format only, with the largest window.
    inflating = zlib.decompressobj(wbits=31)
    try:
        text = inflating.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise invalid_argument("request", f"not gzip: {error}") from None
    if not inflating.eof and len(text) <= bytes_max:
        raise invalid_argument("request", "only the beginning of a gzip member")
    if inflating.unused_data:
        raise invalid_argument("request", "bytes after the first gzip member; send one member")
    return text


class Undecoded:
    """A request as it was received."""

    def __init__(
        self, data: bytes, message_type: type[Message], *, is_json: bool, bytes_max: int = JSON_BYTES_MAX
    ) -> None:
        self.is_json: Final = is_json
        self._data = data
        self._message_type: Final = message_type
        self._bytes_max: Final = bytes_max

    def forget(self) -> None:
        """Drop the bytes: they are not needed any more."""
        self._data = b""

    async def message(self, run: OffLoop = off_loop) -> Message:
        """Return the decoded request. Raises `RpcError` if it cannot be decoded."""
        # Before the thread: a request that is too large must not wait for it, nor keep others waiting.
        self._check_size(self._data)
        # Gzip always in the thread: how much it inflates to is not known before.
        if isinstance(self._data, Deflated) or (self.is_json and len(self._data) > TEXT_BYTES_MAX):
            decoded: Message = await run(self._decoded)
            return decoded
        return self._decoded()

    def _decoded(self) -> Message:
        data = self._data
        if isinstance(data, Deflated):
            data = inflated(data, self._bytes_max)
            # Again for what it inflated to: `inflated` stops one byte above the limit, so that this can tell.
            self._check_size(data)
        if self.is_json:
            return self._of_json(data)
        try:
            return self._message_type.FromString(data)
        except DecodeError as error:
            raise invalid_argument("request", str(error)) from None

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._bytes_max:
            remedy = "send smaller batches, or application/proto" if self.is_json else "send smaller batches"
            raise resource_exhausted("request", f"larger than {self._bytes_max} bytes; {remedy}", None)

    def _of_json(self, data: bytes) -> Message:
        message, fields = self._message_type(), None
        try:
            text = data.decode("utf-8")
            if not text.lstrip().startswith("{"):
                raise invalid_argument("request", "is not a JSON object")
            try:
                fields = DECODER.decode(text)
            except json.JSONDecodeError:
                raise
            except ValueError:  # Python's limit, which its message advises to raise
                raise invalid_argument("request", "a number has more than 4,300 digits") from None
            ParseDict(fields, message)
        except (ParseError, ValueError, RecursionError) as error:
            # Not from the text of protobuf's error, which contains values of the request and can therefore imitate any
            # error.
            with contextlib.suppress(RecursionError):
                refused = unknown_field(fields, message.DESCRIPTOR)
                if refused is not None:
                    raise refused from None
            raise invalid_argument("request", shortened(str(error))) from None
        return message


def _texts_of(message_type: Any, known: set[str]) -> Iterator[tuple[str, re.Pattern[str]]]:  # noqa: ANN401 - a descriptor
    """The numeric fields of a message and of those in it that are not `known`, each with the texts it may have."""
    known.add(message_type.full_name)
    for field in message_type.fields:
        if field.message_type is not None:
            if field.message_type.full_name not in known:
                yield from _texts_of(field.message_type, known)
        elif field.cpp_type not in NOT_NUMBERS:
            yield from ((name, ENUM if field.enum_type else NUMBER) for name in (field.name, field.json_name))


NOT_NUMBERS: Final = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_BOOL)
NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
ENUM: Final = re.compile(r"[A-Za-z]\w*|-?[0-9]+", re.ASCII)
TEXTS: Final = {name: text for method in SERVICE.methods for name, text in _texts_of(method.input_type, set())}
"""By name, because a name is that of a number in all messages, or in none that has a text. Protobuf would take numbers
that Python can read: "1_0" as 10, and the digits of all scripts.
"""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises `RpcError` for a field that is given twice, or a number in a text that
    is not one in JSON.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise invalid_argument(quoted(twice), "is given twice")
    for name, value in pairs:
        if isinstance(value, str | list) and name in TEXTS:
            for one in value if isinstance(value, list) else (value,):
                if isinstance(one, str) and not TEXTS[name].fullmatch(one):
                    raise invalid_argument(name, f"not a number: {quoted(one)}")
    return fields


DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)


def unknown_field(value: object, message: Any, path: str = "") -> RpcError | None:  # noqa: ANN401 - a descriptor
    """Return the refusal of the first field that its message type does not have; None if there is none."""
    if message is None or not isinstance(value, dict):
        return None
    fields = {**message.fields_by_name, **{field.json_name: field for field in message.fields}}
    for name, inner in value.items():
        place = f"{path}.{name}" if path else name
        if name not in fields:
            known = {field.json_name.casefold(): field.json_name for field in message.fields}
            closest = get_close_matches(name[:NAME_COMPARED_MAX].casefold(), known, 1, 0.0)
            hint = f"; did you mean {known[closest[0]]!r}?" if closest else ""
            return invalid_argument(quoted(place), f"unknown field{hint}")
        for index, item in enumerate(inner if isinstance(inner, list) else [inner]):
            at = f"{place}[{index}]" if isinstance(inner, list) else place
            refused = unknown_field(item, fields[name].message_type, at)
            if refused is not None:
                return refused
    return None


async def ready(
    answer: Message | bytes, message_type: type[Message], *, is_json: bool, run: OffLoop = off_loop
) -> bytes:
    """Encode an answer in the client's format. Bytes are already encoded as protobuf."""
    if not is_json:
        return answer if isinstance(answer, bytes) else answer.SerializeToString()
    message = message_type.FromString(answer) if isinstance(answer, bytes) else answer
    return (await json_text(message, run)).encode()


async def json_text(message: Message, run: OffLoop = off_loop) -> str:
    """`json_of`, in the thread for large messages."""
    is_small = message.ByteSize() <= MESSAGE_BYTES_MAX
    text: str = json_of(message) if is_small else await run(partial(json_of, message))
    return text


def json_of(message: Message) -> str:
    """Return JSON on one line: with line breaks, Python's json would not use its C encoder."""
    return MessageToJson(message, indent=None)


class MessageCodec(Codec[bytes, Undecoded]):
    """Protobuf, or JSON in protobuf's mapping. Answers are already encoded, by `ready`."""

    def __init__(self, bytes_max: int, *, is_json: bool) -> None:
        self._bytes_max: Final = min(bytes_max, JSON_BYTES_MAX) if is_json else bytes_max
        self._is_json: Final = is_json

    def name(self) -> str:
        return "json" if self._is_json else "proto"

    def encode(self, message: bytes) -> bytes:
        return message

    def decode(self, data: bytes | bytearray, message_class: Any) -> Undecoded:  # noqa: ANN401 - the package's type is narrower
        received = data if isinstance(data, bytes) else bytes(data)
        return Undecoded(received, message_class, is_json=self._is_json, bytes_max=self._bytes_max)
