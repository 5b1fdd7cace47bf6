"""Settings of tracing."""

from pydantic import BaseModel

from purgatory.service.settings import SettingsGroup, setting


class TracingSettings(SettingsGroup):
    """Tracing: a span for each wait whose caller is traced (docs/tracing.md)."""

    enabled: bool = setting(
        False, "Send spans by OTLP over HTTP, as set by OpenTelemetry's own variables (OTEL_...). Needs the extra otel."
    )


class WithTracing(BaseModel):
    """The group, as the daemon's settings have it."""

    tracing: TracingSettings = TracingSettings()
