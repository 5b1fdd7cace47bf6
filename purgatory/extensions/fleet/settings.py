"""Settings of the fleet."""

from pydantic import BaseModel

from purgatory.service.settings import Count, DurationMs, SettingsGroup, setting


class FleetSettings(SettingsGroup):
    """Fleet: several daemons with one replicated log, of which one leads (docs/fleet.md)."""

    log: str = setting(
        "",
        "The replicated log: kafka://HOST:PORT/TOPIC, if needed with ?config=FILE, or postgresql://HOST:PORT/DATABASE. "
        "Empty: this daemon is alone, and its journal is a file.",
        is_secret=True,  # PostgreSQL's may contain a password
    )
    silence_ms: DurationMs = setting(2_000, "A standby takes over when the log has had no entry for this long.")
    snapshot_bytes: Count = setting(
        64 * 1024 * 1024,
        "The leader stores a snapshot after this much of the log, and trims the log before the last one.",
    )
    address: str = setting("", "The leader's address in the refusals of a standby. Default: grpc.address.")


class WithFleet(BaseModel):
    """The group, as the daemon's settings have it."""

    fleet: FleetSettings = FleetSettings()
