"""Settings of webhooks."""

from typing import Self

from pydantic import BaseModel, model_validator

from purgatory.service.settings import Count, DurationMs, FilePath, HostNames, SettingsGroup, setting


class WebhooksSettings(SettingsGroup):
    """Webhooks: results that are POSTed to a callback (docs/webhooks.md)."""

    allowed_hosts: HostNames = setting(
        "",
        "Hosts that callers may name in callback URLs, separated by spaces: host, host:port, host:* for any port, "
        "*.example.org for all names below. Empty: no callbacks.",
    )
    allow_http: bool = setting(False, "Also accept http:// URLs; webhooks are then signed, but not encrypted.")
    allow_private: bool = setting(
        False, "Also connect to allowed hosts with private, loopback or link-local addresses."
    )
    secret_file: FilePath | None = setting(
        None, "Secrets for signing webhooks, whsec_..., one per line. Reloaded when it changes."
    )
    ca_file: FilePath | None = setting(None, "Authorities to trust for receivers (PEM). Default: those of the system.")
    timeout_ms: DurationMs = setting(10_000, "Time for a receiver to answer before the attempt fails.")
    retry_first_ms: DurationMs = setting(
        5_000, "Pause after the first failed attempt; doubles with each further one, minus a random part of up to half."
    )
    retry_longest_ms: DurationMs = setting(3_600_000, "Longest pause between two attempts.")
    give_up_ms: DurationMs = setting(
        86_400_000, "A result that is undeliverable for this long becomes a dead letter. A restart resets this time."
    )
    dead_letters_max: Count = setting(
        1_000, "Dead letters kept. At the limit, the oldest letter of the principal with the most is dropped."
    )

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.allowed_hosts and self.secret_file is None:
            raise ValueError("webhooks are signed: allowed_hosts needs secret_file")
        return self


class WithWebhooks(BaseModel):
    """The group, as the daemon's settings have it."""

    webhooks: WebhooksSettings = WebhooksSettings()
