"""The tracing extension."""

from typing import TYPE_CHECKING

from pydantic import BaseModel

from purgatory import __version__
from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.tracing.call_trace import traced
from purgatory.service.listeners.listener import Listener
from purgatory.service.rpc.call import Identify
from purgatory.service.settings import SettingsGroup, setting

if TYPE_CHECKING:
    from purgatory.extensions.tracing.wait_spans import WaitSpans


class TracingSettings(SettingsGroup):
    """Tracing: a span for each wait whose caller is traced (docs/tracing.md)."""

    enabled: bool = setting(
        False, "Send spans by OTLP over HTTP, as set by OpenTelemetry's own variables (OTEL_...). Needs the extra otel."
    )


class WithTracing(BaseModel):
    tracing: TracingSettings = TracingSettings()


class TracingExtension(Extension):
    """Sends a span for each traced wait, if `tracing.enabled` is set."""

    name = "tracing"
    settings = WithTracing
    needed_for = "tracing.enabled"

    def __init__(self, core: Core) -> None:
        self._is_enabled = own_settings(core.settings, WithTracing).tracing.enabled
        self._spans: WaitSpans | None = None

    @property
    def listener(self) -> Listener | None:
        return self._spans

    def identify(self, identify: Identify) -> Identify:
        return traced(identify) if self._is_enabled else identify

    async def open(self) -> None:
        if self._is_enabled:
            try:
                from purgatory.extensions.tracing import wait_spans  # noqa: PLC0415 - an extra, slow to import
            except ModuleNotFoundError as missing:
                raise StartupError(
                    f"tracing.enabled needs {missing.name}: pip install 'purgatory-waits[otel]'"
                ) from None
            self._spans = wait_spans.WaitSpans(__version__)  # starts a thread, which `close` ends

    async def close(self, _grace_s: float) -> None:
        if self._spans is not None:
            await self._spans.close()
