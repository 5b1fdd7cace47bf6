"""The daemon's settings: names, defaults and limits. How they are loaded is in `setting_sources`.

A setting has one name in three spellings: `engine.tick_ms` in the file (table `[engine]`, key `tick_ms`),
PURGATORY_ENGINE_TICK_MS in the environment, `--engine-tick-ms` as a flag. Flags override the environment, the
environment overrides the file. Flags, `--help` and docs/configuration.md are derived from the fields.

No group may be called `service` or `port`: Kubernetes sets PURGATORY_SERVICE_HOST and PURGATORY_PORT by itself.
"""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from purgatory import sizes

ENVIRONMENT_PREFIX: Final = "PURGATORY_"
DURATION_MS_MAX: Final = 2**31 - 1
PORT_MAX: Final = 65_535
MEMORY_BYTES_MIN: Final = 128 * 1024 * 1024
"""More than half of this is used by the program itself."""


def split_address(address: str) -> tuple[str, int]:
    """'127.0.0.1:7440' -> ('127.0.0.1', 7440); '[::1]:0' -> ('::1', 0). Raises ValueError on anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ValueError("must be host:port, such as 127.0.0.1:7440 or [::1]:7440")
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > PORT_MAX:
        raise ValueError(f"must end in a port from 0 to {PORT_MAX}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach "host:port". Names other than localhost count as reachable."""
    host, _ = split_address(address)
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked_address(address: str) -> str:
    split_address(address)
    return address


def _checked_path(given: object) -> object:
    if given == "":
        raise ValueError("must be a path; omit the setting if there is none")
    return given


def _checked_folder(path: Path) -> Path:
    if not path.parent.is_dir():
        raise ValueError("must be a file in a folder that exists")
    return path


def _checked_budget(memory_bytes: int) -> int:
    if 0 < memory_bytes < MEMORY_BYTES_MIN:
        raise ValueError(f"must be 0 or at least {MEMORY_BYTES_MIN}")
    return memory_bytes


def _as_words(given: object) -> object:
    return " ".join(map(str, given)) if isinstance(given, list | tuple) else given


def _checked_hosts(hosts: str) -> str:
    for host in hosts.split():
        if "/" in host or "@" in host or "*" in host.removeprefix("*.").removesuffix(":*"):
            raise ValueError(f"must be hosts such as hooks.example.org, *.example.org or localhost:8080, not {host}")
    return hosts


FilePath = Annotated[Path, BeforeValidator(_checked_path)]
"""An empty path would mean the working directory."""

Words = Annotated[str, BeforeValidator(_as_words)]
"""Words, separated by spaces; a list in the file."""

HostNames = Annotated[Words, AfterValidator(_checked_hosts)]

Address = Annotated[str, AfterValidator(_checked_address)]
Count = Annotated[int, Field(ge=1)]
DurationMs = Annotated[int, Field(ge=1, le=DURATION_MS_MAX)]


def setting(
    default: Any,  # noqa: ANN401 - as in pydantic
    description: str,
    *,
    short_flag: str = "",
    is_secret: bool = False,
    **limits: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Declare a setting.

    `short_flag` is a shorter name of its flag; errors do not show the value if `is_secret`. `limits` are `ge`, `le` and
    `min_length`, as in pydantic.
    """
    extra: JsonDict = {"short_flag": short_flag, "is_secret": is_secret}
    return Field(default, description=description, json_schema_extra=extra, **limits)


class _PlainNumbers(BaseModel):
    @field_validator("*", mode="before")
    @classmethod
    def _is_plain(cls, given: object, info: ValidationInfo) -> object:
        """Refuse a number such as "1_0" in a text, which pydantic takes for 10."""
        field = cls.model_fields[info.field_name or ""]
        if field.annotation is int and isinstance(given, str) and "_" in given:
            raise ValueError("must be a valid integer, without underscores")
        return given


class SettingsGroup(_PlainNumbers):
    """Settings of one part of the daemon. Immutable once loaded."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class GrpcSettings(SettingsGroup):
    """gRPC server."""

    address: Address = setting("127.0.0.1:7440", "Address to serve gRPC on, host:port. Port 0: any free port.")
    reflection: bool = setting(True, "Serve reflection, so that generic tools can call without our stubs.")
    message_bytes_max: int = setting(
        32 * 1024 * 1024,
        "Largest message received or sent, in bytes. Received ones are limited to 1/128 of the memory budget, too.",
        ge=1024,
        le=2**31 - 1,
    )
    connection_age_max_ms: int = setting(
        0,
        "Ask clients to reconnect after this long, to spread load. 0: never. `shutdown.grace_ms` later, open "
        "calls are ended: `Session`, `StreamResults`, `AdvanceStream`, `TailResults`, `AttachSource`, long calls of "
        "`Wait`. The Python client and the command line resume them. Sources that the daemon runs itself are exempt.",
        ge=0,
        le=DURATION_MS_MAX,
    )


class HttpSettings(SettingsGroup):
    """HTTP: calls as JSON, the page, metrics and probes."""

    address: Address = setting("127.0.0.1:7441", "Address to serve HTTP on, host:port. Port 0: any free port.")
    allowed_hosts: HostNames = setting(
        "",
        "Names of this daemon that requests without TLS may have in the Host header, separated by spaces: host, "
        "host:port, *.example.org for all names below. localhost and addresses are always allowed.",
    )


class TlsSettings(SettingsGroup):
    """TLS, for gRPC and HTTP alike (docs/security.md)."""

    certificate_file: FilePath | None = setting(
        None, "The server's certificate and its intermediate certificates (PEM). If set: serve TLS only."
    )
    key_file: FilePath | None = setting(None, "The certificate's private key (PEM, without a passphrase).")
    client_ca_file: FilePath | None = setting(None, "Authorities to trust for client certificates (PEM).")
    client_auth: Literal["none", "required"] = setting(
        "none", "required: clients must present a certificate, except to /healthz, /readyz and /leaderz."
    )
    crl_file: FilePath | None = setting(
        None, "Revocation lists of those authorities (PEM): callers with a revoked certificate are refused."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together; one of them is not set")
        if self.certificate_file is None and (self.client_ca_file, self.client_auth, self.crl_file) != (
            None,
            "none",
            None,
        ):
            raise ValueError("client_ca_file, client_auth and crl_file need certificate_file and key_file")
        if (self.client_auth == "required") != (self.client_ca_file is not None):
            raise ValueError('client_auth = "required" and client_ca_file go together; one of them is not set')
        if self.crl_file is not None and self.client_ca_file is None:
            raise ValueError("crl_file needs client_ca_file")
        return self


class EngineSettings(SettingsGroup):
    """Engine."""

    tick_ms: int = setting(1, "Width of a bucket of the timing wheel, by which an expiry may be late.", ge=1, le=60_000)
    strict_partitions: bool = setting(
        False, "Answer UNKNOWN_TOPIC_OR_PARTITION for partitions that no event has announced, instead of creating them."
    )
    replica_lag_time_max_ms: DurationMs = setting(
        30_000, "A replica that has not caught up for this long may not hold the high watermark back."
    )


class EngineLimitsSettings(SettingsGroup):
    """The limits that `EngineLimits` takes, under the same names."""

    pending_operations_max: Count = setting(10_000_000, "Pending operations.")
    pending_items_max: Count = setting(20_000_000, "Partitions and keys of all pending operations in total.")
    partitions_max: Count = setting(100_000, "Known partitions.")
    signal_keys_max: Count = setting(100_000, "Signal keys in memory; above it, idle keys are forgotten.")
    signal_values_bytes_max: Count = setting(
        64 * 1024 * 1024, "Bytes of the values of all signal keys; above it, idle keys with values are forgotten."
    )
    items_per_operation_max: Count = setting(
        2_000, "Partitions or keys of one operation. With names of `topic_length_max`, its result must fit into 3.5 MB."
    )
    timeout_ms_max: DurationMs = setting(DURATION_MS_MAX, "Longest timeout of an operation.")
    timeout_ms_default: DurationMs = setting(30_000, "Timeout of an operation that does not set one.")
    topic_length_max: int = setting(249, "Characters in a topic or key.", ge=1, le=65_535)

    @model_validator(mode="after")
    def _default_within_maximum(self) -> Self:
        if self.timeout_ms_default > self.timeout_ms_max:
            raise ValueError(
                f"timeout_ms_default ({self.timeout_ms_default}) is above timeout_ms_max ({self.timeout_ms_max})"
            )
        return self

    @model_validator(mode="after")
    def _results_fit_into_messages(self) -> Self:
        result_bytes = self.items_per_operation_max * (
            sizes.ITEM_BYTES_MAX + sizes.CHARACTER_BYTES_MAX * self.topic_length_max
        )
        if result_bytes > sizes.MESSAGE_BYTES_MAX:
            raise ValueError(
                f"a result with items_per_operation_max ({self.items_per_operation_max}) names of topic_length_max "
                f"({self.topic_length_max}) characters may have {result_bytes} bytes, and clients accept "
                f"{sizes.MESSAGE_BYTES_MAX}: lower one of the two"
            )
        return self


class AccessSettings(SettingsGroup):
    """Access: who calls, and what they may do (docs/security.md). Without a policy all callers are trusted."""

    policy_file: FilePath | None = setting(None, "Principals, roles and names, as TOML. Reloaded when it changes.")
    tokens_file: FilePath | None = setting(
        None, "Hashes of bearer tokens, made by `purgatory token new`. Reloaded when it changes."
    )
    jwt_keys: str | None = setting(
        None, "Key set for JSON web tokens: a file, or an https URL. Reloaded every minute.", min_length=1
    )
    jwt_issuer: str | None = setting(None, "Required issuer of JSON web tokens.", min_length=1)
    jwt_audience: str | None = setting(None, "Required audience of JSON web tokens.", min_length=1)
    jwt_principal_claim: str = setting("sub", "Claim of JSON web tokens that contains the principal.", min_length=1)

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.policy_file is None and (self.tokens_file is not None or self.jwt_keys is not None):
            raise ValueError("tokens need a policy, which defines what each principal may do: set policy_file too")
        if self.jwt_keys is not None and (self.jwt_issuer is None or self.jwt_audience is None):
            raise ValueError("jwt_keys needs jwt_issuer and jwt_audience")
        return self


class LimitsSettings(EngineLimitsSettings):
    """Limits: what exceeds one is refused with RESOURCE_EXHAUSTED or INVALID_ARGUMENT."""

    memory_bytes_max: Annotated[int, AfterValidator(_checked_budget)] = setting(
        0, "Memory budget, in bytes. 0: 60 % of the memory of the machine or container.", ge=0
    )
    calls_per_second_max: int = setting(0, "Calls per second of one principal. 0: no limit.", ge=0, le=1_000_000)
    sessions_max: Count = setting(10_000, "Open sessions.")
    unacknowledged_results_max: Count = setting(
        1_000_000, "Results a session may leave unacknowledged before its registrations are refused."
    )


class SharesSettings(SettingsGroup):
    """Shares: what one account may hold of a limit that all have in common (docs/security.md)."""

    times_free: int = setting(
        2, "An account holds at most this many times the free part of a limit. 0: no shares.", ge=0, le=1_000
    )


class SessionSettings(SettingsGroup):
    """Sessions."""

    heartbeat_interval_ms: DurationMs = setting(
        10_000, "Send a heartbeat on a stream that has been silent for this long."
    )
    ttl_ms: DurationMs = setting(600_000, "Keep a session this long after its last connection has ended.")


class JournalSettings(SettingsGroup):
    """Journal: what is pending or unacknowledged survives a restart (docs/durability.md)."""

    dir: FilePath | None = setting(
        None, "Folder to store all accepted work in. Short flag: --data-dir.", short_flag="--data-dir"
    )
    mode: Literal["sync", "async"] = setting(
        "sync", "sync: answer once changes are on disk. async: answer before; faster, but a crash loses the latest."
    )


class ShutdownSettings(SettingsGroup):
    """Shutdown (SIGTERM, SIGINT)."""

    grace_ms: DurationMs = setting(10_000, "Time for clients to fetch their last results before streams are ended.")


class LogSettings(SettingsGroup):
    """Log (on stderr)."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "Lowest level to log.")
    format: Literal["text", "json"] = setting("text", "One line of text, or one JSON object, for each entry.")


class HostSettings(NamedTuple):
    """The settings that the host and its sessions use."""

    limits: LimitsSettings = LimitsSettings()
    session: SessionSettings = SessionSettings()
    shares: SharesSettings = SharesSettings()


class Settings(_PlainNumbers, BaseSettings):
    """The settings of the core. Those of extensions are added by `purgatory.extension.settings_class`."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="_",
        # Only the first underscore separates: PURGATORY_ENGINE_TICK_MS is engine.tick_ms, not engine.tick.ms.
        env_nested_max_split=1,
        env_ignore_empty=True,
        frozen=True,
        # Not "forbid": `setting_sources` reports unknown names, with the place where each was found.
        extra="ignore",
    )

    config: FilePath | None = setting(None, "Also read settings from this TOML file.")
    ready_file: Annotated[FilePath, AfterValidator(_checked_folder)] | None = setting(
        None, "Write a line of JSON with pid, grpc_address and http_address to this file once serving."
    )
    insecure: bool = setting(
        False,
        "Serve without TLS or without a policy on addresses that other machines can reach. Without a policy, all "
        "callers that can connect are trusted.",
    )
    extensions: str = setting("all", "Extensions to load, separated by spaces. all: every one; none: only the core.")
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    engine: EngineSettings = EngineSettings()
    access: AccessSettings = AccessSettings()
    limits: LimitsSettings = LimitsSettings()
    shares: SharesSettings = SharesSettings()
    session: SessionSettings = SessionSettings()
    journal: JournalSettings = JournalSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _protected_beyond_loopback(self) -> Self:
        for name, address in (("grpc.address", self.grpc.address), ("http.address", self.http.address)):
            if self.insecure or is_loopback(address):
                continue
            if self.tls.certificate_file is None:
                wanted, otherwise = "tls.certificate_file and tls.key_file", "serve there without TLS"
            elif self.access.policy_file is None and self.tls.client_auth != "required":
                wanted, otherwise = 'access.policy_file, or tls.client_auth = "required"', "trust all callers"
            else:
                continue
            raise ValueError(
                f"{name} {address} can be reached from other machines; set {wanted}, "
                f"or pass --insecure (PURGATORY_INSECURE=true) to {otherwise}"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: flags (given to the constructor), the environment, the file that either of them names."""
        del dotenv_settings, file_secret_settings
        # Read by hand, because the file is named by a setting itself, which is needed before its source can be made.
        path = init_settings().get("config") or env_settings().get("config")
        if path is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, path)
