"""Switches tracing on, where it is asked for and OpenTelemetry is there."""

from contextlib import AsyncExitStack

from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call import Identify
from purgatory.service.settings import TracingSettings
from purgatory.service.tracing.call_trace import traced


class CannotTrace(Exception):
    """OpenTelemetry is not installed. The message is one line that says what to do."""


def trace_waits(
    settings: TracingSettings, version: str, listeners: list[Listener], opened: AsyncExitStack, identify: Identify
) -> Identify:
    """From now on waits have spans, if the settings say so; `opened` sends the last of them. Raises `CannotTrace`."""
    if not settings.enabled:
        return identify
    try:
        from purgatory.service.tracing.wait_spans import WaitSpans  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as missing:
        raise CannotTrace(
            f"there is no {missing.name} for tracing.enabled: pip install 'purgatory-waits[otel]'"
        ) from None
    spans = WaitSpans(version)
    listeners.append(spans)
    opened.push_async_callback(spans.close)
    return traced(identify)
