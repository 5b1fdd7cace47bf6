"""Events on the wire: columns if possible, otherwise rows, in a safe order."""

import asyncio
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from purgatory_client import events
from purgatory_client.errors import ProtocolError
from purgatory_client.events import Event
from purgatory_client.marks import Marks, events_of
from purgatory_client.session.event_sender import EventSender, advance_request
from purgatory_client.wire import sizes

from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.recorded import assert_values_recorded

EVENTS = Path(__file__).with_name("events.txt")


def test_events_are_columns_where_all_have_them_and_rows_otherwise() -> None:
    """As in events.txt. Marks become events in a safe order, in any order of the keywords: storage and leadership are
    sent first, and removal last.
    """

    def request(*made: Event) -> str:
        message = MessageToDict(advance_request(made), preserving_proto_field_name=True)
        columns = (f"{name}: {values}" for name, values in message.get("columns", {}).items())
        return "\n".join((*columns, *map(str, message.get("rows", {}).get("events", ()))))

    names = {"request": request, "events": events, "marks": lambda **marks: request(*events_of("p-1", marks))}
    assert_values_recorded(EVENTS, names)


async def test_columns_and_rows_travel_in_messages_of_their_own() -> None:
    """The events of a call are cut where the form changes, in their order, and have one receipt."""
    sent: list[wire.AdvanceStreamRequest] = []

    async def exchange(request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        sent.append(request)
        count = len(request.rows.events) or len(request.columns.type)
        refusals = [event_pb2.EventRefusal(index=count - 1)]
        return wire.AdvanceReceipt(ended=range(count), unchanged=1, refusals=refusals)

    marks: Marks = {"is_leader": True, "leader_epoch": 7, "log_end_offset": 9, "high_watermark": 9, "removed": "moved"}
    receipt = await EventSender(exchange).send(events_of("p-1", marks))
    assert [len(request.rows.events) or -len(request.columns.type) for request in sent] == [1, -2, 1]
    assert (receipt.ended, receipt.unchanged) == ([0, 0, 1, 0], 3)
    assert [refusal.index for refusal in receipt.refusals] == [0, 2, 3]


async def test_a_fault_of_this_client_is_not_taken_for_its_closing() -> None:
    answers: list[wire.AdvanceReceipt | None] = [None, wire.AdvanceReceipt(ended=[3])]

    async def send(_request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
        answer = answers.pop(0)
        if answer is None:
            raise RuntimeError("a fault")
        return answer

    sender = EventSender(send)
    full = [events.signalled("key")] * sizes.EVENTS_PER_MESSAGE_MAX
    hit, served = (asyncio.create_task(sender.send(batch)) for batch in (full, full[:1]))
    with pytest.raises(ProtocolError, match="internal error in this client: RuntimeError") as failed:
        await hit
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert (await served).ended == [3]
