"""JSON with an unknown field, at every entry point: refused with its path and the closest existing name."""

import io
import json
import struct
from base64 import b64decode
from urllib.parse import quote

import pytest
from google.rpc import error_details_pb2

from tests.http.http_serving import SERVICE, serving_http

PARTITIONS = {"topicPartition": {"topic": "orders", "partition": 3}, "requiredOffset": 42}


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
async def test_a_call(request_json: dict[str, object], field: str, closest: str) -> None:
    """It is refused with POST and with gRPC-Web."""
    data = json.dumps(request_json).encode()
    async with serving_http() as caller:
        sent = {"content-type": "application/json"}
        async with caller.client.post(f"{SERVICE}/Wait", data=data, headers=sent) as response:
            error = json.loads(await response.read())
            assert (response.status, error["code"]) == (400, "invalid_argument")
        (detail,) = error["details"]
        bad = error_details_pb2.BadRequest.FromString(b64decode(detail["value"] + "=="))
        assert bad.field_violations[0].field.startswith(f"'{field}")
        if closest:
            assert bad.field_violations[0].description == f"unknown field; did you mean '{closest}'?"
        assert len(error["message"]) < 300
        sent = {"content-type": "application/grpc-web+json"}
        envelope = struct.pack(">BI", 0, len(data)) + data
        async with caller.client.post(f"{SERVICE}/Wait", data=envelope, headers=sent) as response:
            assert b"unknown%20field" in await response.read()
        assert caller.host.engine.pending == 0


async def test_a_stream_and_an_address() -> None:
    """A Connect stream, a call with GET, and the page's repeated calls refuse it."""
    async with serving_http() as caller:
        data = b'{"sesionId": "s"}'
        sent = {"content-type": "application/connect+json"}
        envelope = struct.pack(">BI", 0, len(data)) + data
        async with caller.client.post(f"{SERVICE}/StreamResults", data=envelope, headers=sent) as response:
            assert b"'sesionId': unknown field; did you mean 'sessionId'?" in await response.read()
        address = f"{SERVICE}/ListPartitions?encoding=json&message=" + quote('{"pageSiz": 5}')
        async with caller.client.get(address) as response:
            assert response.status == 400
            assert "did you mean 'pageSize'?" in await response.text()


async def test_an_unknown_name_of_a_value() -> None:
    async with serving_http() as caller:
        sent = {"content-type": "application/json"}
        body = b'{"sessionId": "s", "batch": {"columns": {"kind": "OPERATION_KIND_PRODUCES"}}}'
        async with caller.client.post(f"{SERVICE}/Register", data=body, headers=sent) as response:
            assert response.status == 400
            assert "OPERATION_KIND_PRODUCES" in await response.text()


async def test_large_json_is_refused() -> None:
    """JSON has a lower size limit than protobuf; the error has the remedy."""
    async with serving_http(message_bytes_max=4 << 20) as caller:
        body = b'{"operation": {}' + b" " * (1 << 20) + b"}"
        sent = {"content-type": "application/json"}
        async with caller.client.post(f"{SERVICE}/Wait", data=io.BytesIO(body), headers=sent) as response:
            assert response.status == 429
            assert f"larger than {1 << 20} bytes; send smaller batches, or application/proto" in await response.text()
