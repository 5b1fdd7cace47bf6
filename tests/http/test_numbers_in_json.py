"""Numbers in JSON: as JSON writes them, also in quotes, and in nothing else that Python can read."""

import json

import pytest

from tests.http.http_serving import SERVICE, serving_http

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
async def test_offset_in_json(text: str) -> None:
    """The offset of a wait is read as the same number, or refused."""
    body = f"""{{"operation": {{"timeoutMs": "0", "produce": {{"partitions": [
        {{"topicPartition": {{"topic": "1_0"}}, "requiredOffset": {text}}}]}}}}}}"""
    async with serving_http() as caller:
        sent = {"content-type": "application/json"}
        async with caller.client.post(f"{SERVICE}/Wait", data=body.encode(), headers=sent) as response:
            answer = json.loads(await response.read())
    if text in READ:
        assert int(answer["result"]["partitions"][0].get("requiredOffset", 0)) == READ[text]
    else:
        assert response.status == 400
        assert answer["message"].startswith(NOT_READ[text])


@pytest.mark.parametrize(
    ("call", "body", "field"),
    [
        ("Cancel", '{"sessionId": "s", "operationIds": ["1", "1_0"]}', "operationIds"),
        ("ListOperations", '{"kind": "1_0"}', "kind"),
        ("ListOperations", '{"page_size": "\u0663"}', "page_size"),
        ("Register", '{"batch": {"columns": {"partitions": [{"topic": "t"}], "itemIndex": ["0_0"]}}}', "itemIndex"),
    ],
)
async def test_other_numbers_in_json(call: str, body: str, field: str) -> None:
    """Lists of numbers, numbers of enums, and both spellings of a name are checked too."""
    async with serving_http() as caller:
        sent = {"content-type": "application/json"}
        async with caller.client.post(f"{SERVICE}/{call}", data=body.encode(), headers=sent) as response:
            answer = json.loads(await response.read())
    assert (response.status, answer["message"][: len(field) + 14]) == (400, f"{field}: not a number")
