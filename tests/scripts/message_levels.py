"""Levels that speak in messages of the wire. They differ in how a call is made and how results are read."""

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import grpc
from google.protobuf import json_format, text_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.engine.calls import Call as EngineCall
from purgatory.engine.calls import Cancel, CancelName, Extend
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.errors import RpcError
from purgatory.service.host import Host
from purgatory.service.recovery import OpenJournal
from purgatory.service.rpc.call import Call, Context
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.settings import EngineLimitsSettings, HostSettings, LimitsSettings, SharesSettings
from purgatory.service.translate import batch_limits
from purgatory.service.translate.results import fill_batch
from purgatory.service.translate.shards import Shards
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import purgatory_service_pb2_grpc, result_pb2
from tests.engine import plain
from tests.journal.kit import copy_files, keep
from tests.kit.daemon import DaemonThread
from tests.kit.eventually import PATIENCE_S
from tests.scripts import messages
from tests.scripts.language import WAITS, Line, Script, Words, ids_of, operations_of, parts_of
from tests.scripts.level import Changed, Level, Refused

START_MS: Final = 1_000
NOT_FOUND: Final = 5


class CallFailed(Exception):
    """A call ended with a status other than OK; `code` is its google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class MessageLevel(Level):
    """Runs one script at a daemon, or at a host."""

    as_columns = False

    def __init__(self, prefix: str) -> None:
        self.names: Final = messages.Names(prefix)
        self.read: Final[dict[str, int]] = {}
        """For each session: the sequence number of the last result that was read."""
        self._page_token = ""
        """The token of the last listing."""

    def call(self, method: str, request: Message) -> Any:  # noqa: ANN401 - the response of the method
        """Make a call. Raises `CallFailed`."""
        raise NotImplementedError

    def results(self, session_id: str, read: int) -> Iterator[wire.ResultBatch]:
        """All results of a session after number `read`, which is acknowledged."""
        raise NotImplementedError

    def _call(self, line: Line) -> list[str]:
        try:
            return super()._call(line)
        except CallFailed as error:
            return [self._shown(f"refused with code {error}")]

    def do_call(self, part: Words) -> list[str]:
        """`call METHOD FIELDS`, in protobuf's text format; `page_token: "next"` continues the last listing."""
        _, method, *fields = part.words
        request: Any = text_format.Parse(
            " ".join(fields), GetMessageClass(SERVICE.methods_by_name[method].input_type)()
        )
        session = getattr(request, "session_id", "")
        self.names.add_prefix(request)
        if getattr(request, "page_token", "") == "next":
            request.page_token = self._page_token
        texts = self._answer(method, request)
        if method == "Register":
            self.read.setdefault(session, 0)
        return texts

    def do_wait(self, part: Words) -> list[str]:
        """`wait produce 1 orders-0@5`: a unary call, which must be answered at once."""
        _, [operation] = operations_of(part._replace(words=part.words[1:]))
        return self._answer(
            "Wait", wire.WaitRequest(operation=messages.operation_rows([operation], self.names).operations[0])
        )

    def do_why(self, part: Words) -> list[str]:
        """`why 1`: what holds back the items of an operation."""
        session, [number] = ids_of(part.words[1])
        request = wire.GetOperationRequest(session_id=self.session_id(session), operation_id=number)
        reasons = self.call("GetOperation", request).operation.held_back_by
        return [self._shown(reason) for reason in reasons]

    def _answer(self, method: str, request: Message) -> list[str]:
        response = self.call(method, request)
        self._page_token = getattr(response, "next_page_token", "")
        return [self._shown(text) for text in messages.field_texts(response)]

    def _shown(self, text: str) -> str:
        """A text of the daemon with the names of the script."""
        for own, shown in ((self.names.prefix, ""), (self._page_token, "next")):
            text = text.replace(own, shown) if own else text
        return text

    def session_id(self, session: str) -> str:
        return self.names.prefix + session

    def ended(self) -> list[tuple[str, plain.Ended]]:
        ended = []
        for session in self.read:
            for batch in self.results(self.session_id(session), self.read[session]):
                assert batch.first_sequence == self.read[session] + 1, f"results are not consecutive: {batch}"
                self.read[session] += len(batch.rows.results) or len(batch.columns.operation_id)
                ended += [(session, row) for row in messages.ended_of(batch, self.names)]
        # The receipt of a refused registration was printed.
        return [(session, row) for session, row in ended if row.outcome != result_pb2.OUTCOME_REFUSED]

    def register(self, session: str, operations: list[plain.Operation]) -> Any:  # noqa: ANN401 - a receipt
        batch = wire.RegisterBatch(batch_id=1)
        if self.as_columns:
            batch.columns.CopyFrom(messages.operation_columns(operations, self.names))
        else:
            batch.rows.CopyFrom(messages.operation_rows(operations, self.names))
        request = wire.RegisterRequest(session_id=self.session_id(session), batch=batch)
        self.read.setdefault(session, 0)
        return self.call("Register", request).receipt

    def apply(self, events: list[plain.Event]) -> tuple[list[Refused], int]:
        request = messages.advance_request(events, self.names, as_columns=self.as_columns)
        receipt = self.call("Advance", request).receipt
        return [(one.code, one.error_code) for one in receipt.refusals], receipt.unchanged

    def change(self, session: str, call: EngineCall) -> Changed:
        request: dict[str, Any] = {"session_id": self.session_id(session)}
        match call:
            case Extend(operation_ids=ids, timeout_ms=timeout_ms):
                request |= {"operation_ids": ids, "timeout_ms": timeout_ms}
                return Changed(self.call("Extend", wire.ExtendRequest(**request)).not_pending_operation_ids)
            case Cancel(operation_ids=ids):
                request["operation_ids"] = ids
            case CancelName(name=(key, -1)):
                request = {"key": self.names.prefix + key}
            case CancelName(name=name):
                request = {"topic_partition": self.names.partition(name)}
        answer = self.call("Cancel", wire.CancelRequest(**request))
        return Changed(answer.not_pending_operation_ids, answer.cancelled)

    def close_session(self, session: str) -> int:
        del self.read[session]
        request = wire.CloseSessionRequest(session_id=self.session_id(session))
        cancelled: int = self.call("CloseSession", request).cancelled
        return cancelled

    def marks(self, name: plain.Name) -> plain.PartitionMarks | None:
        request = wire.GetPartitionRequest(topic_partition=self.names.partition(name))
        try:
            return messages.marks_of(self.call("GetPartition", request).partition)
        except CallFailed as error:
            if error.code != NOT_FOUND:
                raise
            return None


def expire(host: Host, clock: ManualClock, ms: int) -> None:
    """Move a host's clock, and end what is due."""
    clock.jump(ms)
    host._tick()
    host.reaper.turn()
    while 0 <= host.engine.next_expiration_ms() <= clock.now_ms():
        host.reaper.turn()


class HostLevel(MessageLevel):
    """The servicer's methods, called without a network; results are taken from the outbox."""

    def __init__(self, runner: asyncio.Runner, prefix: str = "") -> None:
        super().__init__(prefix)
        self._runner = runner
        self.clock: Final = ManualClock(START_MS)
        self.settings = HostSettings()
        self._shards = Shards()
        self._principal = ""
        self._owners: Final[dict[str, str]] = {}
        """The principal of each session."""
        self.host = self.new_host()

    def new_host(self) -> Host:
        limits = EngineLimits(
            **{name: getattr(self.settings.limits, name) for name in EngineLimitsSettings.model_fields}
        )
        return Host(Engine(limits, self.clock.now_ms()), self.clock, self.settings, shards=self._shards)

    def start_again(self) -> None:
        """Begin with a new host, because its settings have changed."""
        self.host = self.new_host()

    def run(self, script: Script) -> list[Line]:
        with mock.patch.dict(vars(batch_limits)):
            return super().run(script)

    def do_limits(self, part: Words) -> list[str]:
        """`limits sessions_max=3 times_free=0 events_max=2`: begin with these limits and shares."""
        given = {name: int(value) for name, value in part.options.items()}
        for name in given.keys() & {"operations_max", "events_max", "items_max"}:
            vars(batch_limits)[name.upper()] = given.pop(name)
        shares = SharesSettings(times_free=given.pop("times_free", 2))
        self.settings = HostSettings(LimitsSettings(**given), shares=shares)
        self.start_again()
        return []

    def do_shard(self, part: Words) -> list[str]:
        """`shard 1 of 2`: begin as one of several daemons."""
        _, number, _, count = part.words
        self._shards = Shards([f"shard-{place}" for place in range(int(count))], shard=int(number))
        self.start_again()
        return []

    def do_as(self, part: Words) -> list[str]:
        """`as ann`: the calls of the following lines are hers."""
        self._principal = part.words[1]
        return []

    def register(self, session: str, operations: list[plain.Operation]) -> Any:  # noqa: ANN401
        self._owners.setdefault(self.session_id(session), self._principal)
        return super().register(session, operations)

    def called(self, method: str, request: Message) -> Coroutine[Any, Any, Any]:
        call = Call(cast(Context, mock.Mock()), self.host.sessions.accounts.of(self._principal))
        found: Coroutine[Any, Any, Any] = getattr(PurgatoryServicer(self.host), method)(request, call)
        return found

    def call(self, method: str, request: Message) -> Any:  # noqa: ANN401
        try:
            return self._runner.run(self.called(method, request))
        except RpcError as error:
            raise CallFailed(error.code, error.message) from None

    def results(self, session_id: str, read: int) -> Iterator[wire.ResultBatch]:
        owner = self.host.sessions.accounts.of(self._owners.get(session_id, ""))
        session = self.host.sessions.get(session_id, owner)
        session.resume(read)
        self.host.journal.changed(session)
        session.outbox.rewind()
        session.outbox.release_all()
        while True:
            first, slices = session.outbox.take(10_000)
            if not slices:
                return
            batch = wire.ResultBatch()
            fill_batch(batch, first, slices, columns=False)
            yield batch

    def pass_time(self, ms: int) -> None:
        async def passed() -> None:
            expire(self.host, self.clock, ms)

        self._runner.run(passed())


class RestoredLevel(HostLevel):
    """The same host, which crashes after every line and is restored from a copy of its journal."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        super().__init__(runner)
        self._folder: Final = folder
        self._number = 0
        self._opened = self._open()

    @classmethod
    def unsupported(cls, script: Script) -> str:
        if any("heartbeat_timeout_ms" in line.text for line in script.lines):
            return "a silence begins again with each crash"
        if any("refused with code 3: batch." in text for line in script.lines for text in line.output):
            return "the ids of a batch that is refused as a whole are stored with the next batch"
        return super().unsupported(script)

    def start_again(self) -> None:
        """The crash after the line does it."""

    def ended(self) -> list[tuple[str, plain.Ended]]:
        self._crash()
        return super().ended()

    def _crash(self) -> None:
        self._runner.run(self.host.journal.durable())
        copy_files(self._journal(), self._folder / str(self._number + 1))
        self.close()
        self._number += 1
        self.host = self.new_host()
        self._opened = self._open()

    def close(self) -> None:
        assert self._runner.run(self._opened.close(PATIENCE_S))

    def _journal(self) -> Path:
        return self._folder / str(self._number)

    def _open(self) -> OpenJournal:
        return self._runner.run(keep(self.host, self._journal(), self.clock))


class SharedDaemon:
    """A whole daemon in a thread, whose clock only scripts move."""

    def __init__(self) -> None:
        self._clock: Final = ManualClock(START_MS)
        with mock.patch("purgatory.daemon.SystemClock", return_value=self._clock):
            self._thread: Final = DaemonThread("--session-ttl-ms", str(2**31 - 1))
        self.address: Final = self._thread.address
        self.http_address: Final = self._thread.http_address
        self._channel: Final = grpc.insecure_channel(self.address)
        self.stub: Final = purgatory_service_pb2_grpc.PurgatoryServiceStub(self._channel)

    def pass_time(self, ms: int) -> None:
        self._thread.call(lambda: expire(self._thread._daemon._host, self._clock, ms))

    def close(self) -> None:
        self._channel.close()
        self._thread.stop()


class GrpcLevel(MessageLevel):
    def __init__(self, daemon: SharedDaemon, prefix: str) -> None:
        super().__init__(prefix)
        self._daemon: Final = daemon

    def run(self, script: Script) -> list[Line]:
        lines = super().run(script)
        self._close_sessions()
        return lines

    def _close_sessions(self) -> None:
        for session in list(self.read):
            self.close_session(session)

    def call(self, method: str, request: Message) -> Any:  # noqa: ANN401
        try:
            return getattr(self._daemon.stub, method)(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            raise CallFailed(error.code().value[0], str(error.details())) from None

    def results(self, session_id: str, read: int) -> Iterator[wire.ResultBatch]:
        request = wire.StreamResultsRequest(session_id=session_id, last_sequence=read, columns=self.as_columns)
        stream = self._daemon.stub.StreamResults(request, timeout=PATIENCE_S)
        newest = 0
        for message in stream:
            if message.HasField("opened"):
                newest = message.opened.newest_sequence
            elif message.HasField("results"):
                read += len(message.results.rows.results) or len(message.results.columns.operation_id)
                yield message.results
            if read >= newest:
                break
        stream.cancel()

    def pass_time(self, ms: int) -> None:
        self._daemon.pass_time(ms)


class ColumnsLevel(GrpcLevel):
    as_columns = True

    @classmethod
    def unsupported(cls, script: Script) -> str:
        batches = [parts_of(line.text) for line in script.lines if line.verb in WAITS]
        if any(len({part.words[0] for part in parts}) > 1 for parts in batches):
            return "columns have operations of one kind"
        return super().unsupported(script)


class HttpLevel(GrpcLevel):
    """Calls over HTTP with JSON; results are read as server-sent events."""

    def call(self, method: str, request: Message) -> Any:  # noqa: ANN401
        url = f"http://{self._daemon.http_address}/{SERVICE.full_name}/{method}"
        body = json_format.MessageToJson(request).encode()
        answer = GetMessageClass(SERVICE.methods_by_name[method].output_type)()
        asked = urllib.request.Request(url, body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=PATIENCE_S) as response:
                json_format.Parse(response.read(), answer)
        except urllib.error.HTTPError as error:
            told = json.load(error)
            code = grpc.StatusCode[told["code"].upper()].value[0]
            raise CallFailed(code, told["message"]) from None
        return answer

    def results(self, session_id: str, read: int) -> Iterator[wire.ResultBatch]:
        stub = self._daemon.stub
        opening = stub.StreamResults(wire.StreamResultsRequest(session_id=session_id, last_sequence=read))
        opened = next(opening).opened
        opening.cancel()
        url = f"http://{self._daemon.http_address}/v1/results?session={urllib.parse.quote(session_id)}"
        asked = urllib.request.Request(url, headers={"Last-Event-ID": f"{opened.incarnation}-{read}"})
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as response:
            while read < opened.newest_sequence:
                line = response.readline()
                assert line, "the stream has ended"
                if line.startswith(b"data:") and b'"outcome"' in line:
                    read += 1
                    row = json_format.Parse(line[5:], result_pb2.Result())
                    yield wire.ResultBatch(first_sequence=read, rows=wire.ResultRows(results=[row]))
