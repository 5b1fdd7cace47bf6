"""Settings of webhooks."""

from typing import Self

from pydantic import BaseModel, model_validator

from purgatory.service.settings import Count, DurationMs, FilePath, HostNames, SettingsGroup, setting


class WebhooksSettings(SettingsGroup):
    """Webhooks: results that are POSTed to a callback (docs/webhooks.md)."""

    allowed_hosts: HostNames = setting(
        "",
        "Hosts that callers may name in callback URLs, separated by spaces: host, host:port, host:* for any port, "
        "*.example.org for all names below. None: no callbacks.",
    )
    allow_http: bool = setting(False, "Take URLs that begin with http:// too; signed, but not encrypted.")
    allow_private: bool = setting(
        False, "Connect to private, loopback and link-local addresses too, if an allowed host has such a one."
    )
    secret_file: FilePath | None = setting(
        None, "Secrets that webhooks are signed with, whsec_..., one a line. Read again when it changes."
    )
    ca_file: FilePath | None = setting(
        None, "Authorities whose certificates receivers may present (PEM). Without: those of the system."
    )
    timeout_ms: DurationMs = setting(10_000, "A receiver that has not answered for this long has failed.")
    retry_first_ms: DurationMs = setting(
        5_000, "Pause after the first failed attempt; it doubles with each further one, less a random part of a half."
    )
    retry_longest_ms: DurationMs = setting(3_600_000, "Longest pause between two attempts.")
    give_up_ms: DurationMs = setting(
        86_400_000, "A result that was not delivered for this long becomes a dead letter. A restart begins it anew."
    )
    posts_max: Count = setting(64, "POSTs in flight at one time; at most half to new, slow or silent hosts.")
    posts_per_host_max: Count = setting(4, "The same to one host; one that is new or does not answer gets 1.")
    dead_letters_max: Count = setting(1_000, "Dead letters kept. At the limit whoever has the most loses the oldest.")

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.allowed_hosts and self.secret_file is None:
            raise ValueError("webhooks are signed: allowed_hosts needs secret_file")
        return self


class WithWebhooks(BaseModel):
    """The group, as the daemon's settings have it."""

    webhooks: WebhooksSettings = WebhooksSettings()
