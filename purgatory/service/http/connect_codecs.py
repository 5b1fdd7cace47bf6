"""Messages over HTTP, as protobuf or as JSON.

What comes in is decoded by the call, in its turn (`Undecoded`); what goes out has been encoded by it (`ready`). JSON is
made and read by Python code, some fifty times as slow as protobuf: what is large is left to a thread, so that the event
loop is free every few milliseconds.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from connectrpc.codec import Codec
from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError, Message

from purgatory.service.rpc.statuses import invalid_argument

TEXT_BYTES_MAX: Final = 16_384
"""JSON is read on the loop up to this size: a millisecond or two."""
MESSAGE_BYTES_MAX: Final = 4_096
"""JSON is made on the loop of messages up to this size as protobuf."""

Result = TypeVar("Result")

# One thread: what one caller sends must not take more of the interpreter than what is served meanwhile.
_THREAD: Final = ThreadPoolExecutor(1, "json")


async def off_loop(work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(_THREAD, work)


class Undecoded:
    """A request as it came."""

    def __init__(self, data: bytes, message_type: type[Message], *, is_json: bool) -> None:
        self.is_json: Final = is_json
        self._data: Final = data
        self._message_type: Final = message_type

    async def message(self) -> Message:
        """Raises `CallRefused` for what is no message of its type."""
        if not self.is_json:
            return self._of_binary()
        return self._of_json() if len(self._data) <= TEXT_BYTES_MAX else await off_loop(self._of_json)

    def _of_binary(self) -> Message:
        try:
            return self._message_type.FromString(self._data)
        except DecodeError as error:
            raise invalid_argument("request", str(error)) from None

    def _of_json(self) -> Message:
        """Fields that are not known are ignored, as they are in protobuf."""
        message = self._message_type()
        try:
            text = self._data.decode("utf-8")
            if not text.lstrip().startswith("{"):
                raise invalid_argument("request", "is not a JSON object")
            Parse(text, message, ignore_unknown_fields=True)
        except (ParseError, ValueError, RecursionError) as error:
            raise invalid_argument("request", str(error)) from None
        return message


class Ready:
    """An encoded answer."""

    def __init__(self, data: bytes) -> None:
        self.data: Final = data


async def ready(answer: Message | bytes, message_type: type[Message], *, is_json: bool) -> Ready:
    """An answer as the client wants it. As bytes it is protobuf already."""
    if not is_json:
        return Ready(answer if isinstance(answer, bytes) else answer.SerializeToString())
    message = message_type.FromString(answer) if isinstance(answer, bytes) else answer
    return Ready((await json_text(message)).encode())


async def json_text(message: Message) -> str:
    """`json_of`, off the loop for what is large."""
    return json_of(message) if message.ByteSize() <= MESSAGE_BYTES_MAX else await off_loop(partial(json_of, message))


def json_of(message: Message) -> str:
    """One line: with line breaks, Python's json would not use its C encoder."""
    return MessageToJson(message, indent=None)


class BinaryCodec(Codec[Ready, Undecoded]):
    """Protobuf."""

    def name(self) -> str:
        return "proto"

    def encode(self, message: Ready) -> bytes:
        return message.data

    def decode(self, data: bytes | bytearray, message_class: Any) -> Undecoded:  # noqa: ANN401 - the package's type is narrower
        return Undecoded(bytes(data), message_class, is_json=False)


class JsonCodec(Codec[Ready, Undecoded]):
    """JSON as protobuf maps it."""

    def name(self) -> str:
        return "json"

    def encode(self, message: Ready) -> bytes:
        return message.data

    def decode(self, data: bytes | bytearray, message_class: Any) -> Undecoded:  # noqa: ANN401 - as above
        return Undecoded(bytes(data), message_class, is_json=True)
