"""docs/grpc.md: each call of the service is there, in JSON that is its request."""

import json
import re
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc.handlers import SERVICE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "grpc.md"
EXAMPLES = re.findall(r"grpcurl -plaintext -d '([^']*)' \S+ purgatory\.v1\.PurgatoryService/(\w+)", PAGE.read_text())


def test_every_call_is_shown() -> None:
    assert {name for _, name in EXAMPLES} == {method.name for method in SERVICE.methods}


@pytest.mark.parametrize(("text", "name"), EXAMPLES, ids=[name for _, name in EXAMPLES])
def test_its_json_is_a_request_of_the_call(text: str, name: str) -> None:
    method = SERVICE.methods_by_name[name]
    decoder, rest, count = json.JSONDecoder(), text, 0
    while rest:
        message, end = decoder.raw_decode(rest)
        json_format.ParseDict(message, GetMessageClass(method.input_type)())
        rest, count = rest[end:].lstrip(), count + 1
    assert count == 1 or (method.client_streaming and count > 1)
