"""Settings of the fleet."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, model_validator

from purgatory.service.settings import Count, DurationMs, SettingsGroup, Words, setting, split_address

SHARDS_MAX = 64


def _checked_targets(targets: str) -> str:
    for target in targets.split():
        for address in target.removeprefix("dns:///").split(","):
            try:
                split_address(address)
            except ValueError as error:
                raise ValueError(f"{target}: {error}") from None
    return targets


class FleetSettings(SettingsGroup):
    """Fleet: several daemons with one replicated log, of which one leads; shards (docs/fleet.md)."""

    log: str = setting(
        "",
        "The replicated log: kafka://HOST:PORT/TOPIC, if needed with ?config=FILE, or postgresql://HOST:PORT/DATABASE. "
        "Empty: this daemon is alone, and its journal is a file.",
        is_secret=True,  # PostgreSQL's may contain a password
    )
    silence_ms: DurationMs = setting(
        2_000, "A standby takes over when the log has had no entry for this long. The same for all daemons."
    )
    snapshot_bytes: Count = setting(
        64 * 1024 * 1024,
        "The leader stores a snapshot after this much of the log, and trims the log before the last one.",
    )
    address: str = setting(
        "",
        "The address by which others reach this daemon: in the refusals of a standby, and with --shards. Default: "
        "grpc.address.",
    )
    targets: Annotated[Words, AfterValidator(_checked_targets)] = setting(
        "",
        "The gRPC target of each shard, in order, separated by spaces: host:port, a:7440,b:7440 for a pair, or "
        "dns:///name:7440. The same for all daemons. Empty: one shard.",
    )
    shard: int = setting(0, "This daemon's shard, from 0.", ge=0)
    urls: Words = setting(
        "",
        "The HTTP address of each shard, as a URL, in the order of fleet.targets, so that requests for ready gates are "
        "passed on to the gate's shard. --shards sets it.",
    )
    ends_with_stdin: bool = setting(
        False, "Shut down when standard input closes, as with the supervisor that holds it. --shards sets it."
    )

    @property
    def shard_targets(self) -> tuple[str, ...]:
        return tuple(self.targets.split())

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.shard >= max(1, len(self.shard_targets)):
            raise ValueError(
                f"shard is {self.shard}, and the last one of targets is {max(1, len(self.shard_targets)) - 1}"
            )
        if len(set(self.shard_targets)) < len(self.shard_targets):
            raise ValueError("targets: the same target twice")
        if self.urls and len(self.urls.split()) != len(self.shard_targets):
            raise ValueError(f"urls has {len(self.urls.split())} addresses for {len(self.shard_targets)} shards")
        return self


class WithFleet(BaseModel):
    fleet: FleetSettings = FleetSettings()
    shards: int = setting(
        1,
        "Run this many daemons as child processes, to use as many cores: shard 0 on the given ports, the others on the "
        "ports that follow (docs/fleet.md).",
        ge=1,
        le=SHARDS_MAX,
    )
