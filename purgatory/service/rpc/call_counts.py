"""Counts ended calls by method and status, and the messages and bytes that they received and sent."""

from collections.abc import Iterable
from typing import Final

from google.protobuf.descriptor import MethodDescriptor
from google.rpc import code_pb2
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

CODE_NAMES: Final = {number: name for name, number in code_pb2.Code.items()}

EXPECTED_CODES: Final = (
    code_pb2.OK,
    code_pb2.CANCELLED,
    code_pb2.UNKNOWN,
    code_pb2.INVALID_ARGUMENT,
    code_pb2.DEADLINE_EXCEEDED,
    code_pb2.NOT_FOUND,
    code_pb2.PERMISSION_DENIED,
    code_pb2.RESOURCE_EXHAUSTED,
    code_pb2.UNAVAILABLE,
    code_pb2.UNAUTHENTICATED,
)
"""Exported for each method from the start, so that their rate can be queried."""


class MethodCounts:
    """Counts of one method, taken where its calls are served: once per call, and once per message."""

    __slots__ = ("ended", "received_bytes", "sent_bytes")

    def __init__(self, codes: Iterable[int] = EXPECTED_CODES) -> None:
        self.ended: Final = dict.fromkeys(codes, 0)
        """By google.rpc.Code."""
        self.received_bytes = 0
        self.sent_bytes = 0

    def add_ended(self, code: int) -> None:
        # Another code gets its series with its first call, which is therefore missing from rates.
        self.ended[code] = self.ended.get(code, 0) + 1


class CallCounts(Collector):
    """Counts of all methods that are served, each from the moment that it is registered."""

    def __init__(self) -> None:
        self._by_method: Final[dict[str, MethodCounts]] = {}

    def of(self, method: MethodDescriptor) -> MethodCounts:
        """Return the counts of a method, by its name; for a standard service, with its name ("Health/Check")."""
        service = method.containing_service
        is_ours = service.full_name.startswith("purgatory.")
        return self._by_method.setdefault(method.name if is_ours else f"{service.name}/{method.name}", MethodCounts())

    def of_unknown(self) -> MethodCounts:
        """Return the counts of methods that do not exist, as one: their names are the caller's."""
        return self._by_method.setdefault("unknown", MethodCounts((code_pb2.UNIMPLEMENTED,)))

    def collect(self) -> Iterable[Metric]:
        calls = CounterMetricFamily(
            "purgatory_calls_ended", "Calls ended, by method and status.", labels=["method", "code"]
        )
        received = CounterMetricFamily("purgatory_received_bytes", "Bytes read over gRPC.", labels=["method"])
        sent = CounterMetricFamily("purgatory_sent_bytes", "Bytes sent over gRPC.", labels=["method"])
        for method, counts in self._by_method.items():
            for code, count in counts.ended.items():
                calls.add_metric([method, CODE_NAMES.get(code, "UNKNOWN")], count)
            received.add_metric([method], counts.received_bytes)
            sent.add_metric([method], counts.sent_bytes)
        return calls, received, sent
