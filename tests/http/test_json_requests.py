"""Requests in JSON that are refused: for unknown fields, numbers that JSON would not write so, and their size."""

import io
import json
from base64 import b64decode
from typing import Any
from urllib.parse import quote

import pytest
from google.rpc import error_details_pb2

from tests.http.http_serving import SERVICE, HttpCaller, enveloped, serving_http

PARTITIONS = {"topicPartition": {"topic": "orders", "partition": 3}, "requiredOffset": 42}


async def posted(caller: HttpCaller, call: str, body: bytes, kind: str = "json") -> tuple[int, bytes]:
    """The status and the body of the answer."""
    sent = {"content-type": f"application/{kind}"}
    async with caller.client.post(f"{SERVICE}/{call}", data=io.BytesIO(body), headers=sent) as response:
        return response.status, await response.read()


@pytest.mark.parametrize(
    ("request_json", "field", "closest"),
    [
        (
            {"operation": {"timeoutMS": 100, "produce": {"partitions": [PARTITIONS]}}},
            "operation.timeoutMS",
            "timeoutMs",
        ),
        ({"operation": {"timeoutms": 100}}, "operation.timeoutms", "timeoutMs"),
        ({"opertion": {}}, "opertion", "operation"),
        (
            {"operation": {"produce": {"partitions": [PARTITIONS, {**PARTITIONS, "requiredOfset": 1}]}}},
            "operation.produce.partitions[1].requiredOfset",
            "requiredOffset",
        ),
        ({"operation": {'a "b"\n at "c".': 1}}, "operation.a", ""),
        ({"operation": {"z" * 10_000: 1}}, "operation.zzz", ""),
    ],
)
async def test_unknown_field_is_refused_with_its_path_and_the_closest_name(
    request_json: dict[str, object], field: str, closest: str
) -> None:
    """With POST and with gRPC-Web."""
    data = json.dumps(request_json).encode()
    async with serving_http() as caller:
        status, body = await posted(caller, "Wait", data)
        error = json.loads(body)
        assert (status, error["code"]) == (400, "invalid_argument")
        (detail,) = error["details"]
        bad = error_details_pb2.BadRequest.FromString(b64decode(detail["value"] + "=="))
        assert bad.field_violations[0].field.startswith(f"'{field}")
        if closest:
            assert bad.field_violations[0].description == f"unknown field; did you mean '{closest}'?"
        assert len(error["message"]) < 300
        assert b"unknown%20field" in (await posted(caller, "Wait", enveloped(data), "grpc-web+json"))[1]
        assert caller.host.engine.pending == 0


async def test_unknown_field_is_refused_by_streams_and_in_addresses() -> None:
    async with serving_http() as caller:
        _, body = await posted(caller, "StreamResults", enveloped(b'{"sesionId": "s"}'), "connect+json")
        assert b"'sesionId': unknown field; did you mean 'sessionId'?" in body
        address = f"{SERVICE}/ListPartitions?encoding=json&message=" + quote('{"pageSiz": 5}')
        async with caller.client.get(address) as response:
            assert response.status == 400
            assert "did you mean 'pageSize'?" in await response.text()


async def test_unknown_value_of_an_enumeration_is_refused() -> None:
    body = b'{"sessionId": "s", "batch": {"columns": {"kind": "OPERATION_KIND_PRODUCES"}}}'
    async with serving_http() as caller:
        status, answer = await posted(caller, "Register", body)
        assert status == 400
        assert b"OPERATION_KIND_PRODUCES" in answer


async def test_json_above_its_own_limit_is_refused_with_the_remedy() -> None:
    async with serving_http(message_bytes_max=4 << 20) as caller:
        status, answer = await posted(caller, "Wait", b'{"operation": {}' + b" " * (1 << 20) + b"}")
        assert status == 429
        assert f"larger than {1 << 20} bytes; send smaller batches, or application/proto" in answer.decode()


READ = {
    '"10"': 10,
    "10": 10,
    "10.0": 10,
    '"1e1"': 10,
    "1E+1": 10,
    '"-0"': 0,
    '"2305843009213693951"': 2**61 - 1,
}
NOT_READ = {
    '"1_0"': "requiredOffset: not a number: '1_0'",
    '"\u0663"': "requiredOffset: not a number: '\u0663'",
    '"\uff11"': "requiredOffset: not a number: '\uff11'",
    '"+1"': "requiredOffset: not a number: '+1'",
    '"\\n1"': "requiredOffset: not a number: '\\n1'",
    '""': "requiredOffset: not a number: ''",
    '"0x10"': "requiredOffset: not a number: '0x10'",
    '"NaN"': "requiredOffset: not a number: 'NaN'",
    "1.5": "request: Failed to parse operation field",
    "1" * 4_301: "request: a number has more than 4,300 digits",
    f'"{"1" * 4_301}"': "request: Failed to parse operation field",
    "9223372036854775808": "request: Failed to parse operation field",
    '7, "requiredOffset": 8': "'requiredOffset': is given twice",
}


@pytest.mark.parametrize("text", [*READ, *NOT_READ], ids=lambda text: text[:20])
async def test_number_in_json_is_read_as_it_is_or_refused(text: str) -> None:
    body = f"""{{"operation": {{"timeoutMs": "0", "produce": {{"partitions": [
        {{"topicPartition": {{"topic": "1_0"}}, "requiredOffset": {text}}}]}}}}}}"""
    async with serving_http() as caller:
        status, answer = await posted(caller, "Wait", body.encode())
    found: Any = json.loads(answer)
    if text in READ:
        assert int(found["result"]["partitions"][0].get("requiredOffset", 0)) == READ[text]
    else:
        assert status == 400
        assert found["message"].startswith(NOT_READ[text])


@pytest.mark.parametrize(
    ("call", "body", "field"),
    [
        ("Cancel", '{"sessionId": "s", "operationIds": ["1", "1_0"]}', "operationIds"),
        ("ListOperations", '{"kind": "1_0"}', "kind"),
        ("ListOperations", '{"page_size": "\u0663"}', "page_size"),
        ("Register", '{"batch": {"columns": {"partitions": [{"topic": "t"}], "itemIndex": ["0_0"]}}}', "itemIndex"),
    ],
)
async def test_numbers_of_lists_enums_and_both_spellings_are_checked(call: str, body: str, field: str) -> None:
    async with serving_http() as caller:
        status, answer = await posted(caller, call, body.encode())
    assert (status, json.loads(answer)["message"][: len(field) + 14]) == (400, f"{field}: not a number")
