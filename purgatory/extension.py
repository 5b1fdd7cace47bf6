"""The interface of extensions: parts of the daemon that can be left out.

The daemon takes a list of extension classes and imports none of them. For each it calls, in this order:

    stand_by     before the daemon is built: waits until it may serve
    shards       before the host is built
    __init__     with the core, before an address is bound. Opens nothing that needs closing.
    calls, callbacks, routes, identify, servers, listener     its additions to the daemon; see each
    open         the addresses are bound; the journal has not been restored yet
    restore      before the journal is restored into the host; called only if there is a journal
    start        the host is about to start, and calls will be served
    serving      calls are served
    reload       at SIGHUP
    terminate    shutdown has begun; results are still being delivered
    close        the host has stopped. Called for every extension whose `open` was called, in reverse order, even if the
                 start failed later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, TypeVar

import grpc
from pydantic import BaseModel
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from purgatory.service.access.access import Access
from purgatory.service.host import Host
from purgatory.service.http.http_calls import HttpMethods
from purgatory.service.listeners.listener import Listener
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.recovery import OpenJournal, Takeover
from purgatory.service.rpc.call import Identify
from purgatory.service.rpc.handlers import Method
from purgatory.service.sessions.session import Callbacks
from purgatory.service.settings import Settings
from purgatory.service.translate.shards import Shards

Own = TypeVar("Own", bound=BaseModel)


class StartupError(Exception):
    """The daemon cannot start. The message is one line with the setting, the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of the daemon that extensions work with."""

    settings: Settings
    host: Host
    metrics: Metrics
    access: Access
    journal: OpenJournal | None
    engine_started_ms: int
    """Engine time at the start, milliseconds."""
    takeover: Takeover | None = None
    """What `stand_by` returned."""
    status_line: Callable[[], str] = lambda: ""
    """Returns what all extensions say about the daemon; see `Extension.status_line`."""
    end: Callable[[str, int], None] = lambda _reason, _code: None
    """Lets the process shut down as at SIGTERM, and exit with this code."""


@dataclass(frozen=True, slots=True)
class HttpParts:
    """The parts that an extension adds to the HTTP site."""

    routes: Sequence[BaseRoute] = ()
    applications: Mapping[str, ASGIApp] = field(default_factory=dict)
    """ASGI applications by path. They authenticate their callers themselves, with `HttpMethods`."""


class Extension:
    """Hooks that do nothing: override the ones you need."""

    name: ClassVar[str]
    settings: ClassVar[type[BaseModel]] = BaseModel
    """Its settings: a model whose fields are added to those of the daemon. `own_settings` returns them."""
    needed_for: ClassVar[str] = ""
    """Settings that have no effect without this extension, such as "archive.uri", separated by spaces."""

    @classmethod
    async def stand_by(cls, _settings: Settings) -> Takeover | None:
        """Return when this process may serve. With a replicated log, that is when it has become the leader.

        Raises `StartupError` or `JournalError`. Is cancelled if the process is told to end.
        """
        return None

    @classmethod
    def shards(cls, _settings: Settings) -> Shards | None:
        """Return which of several daemons this one is; None: the extension does not know."""
        return None

    def __init__(self, core: Core) -> None:
        """Raises `StartupError`."""

    @property
    def listener(self) -> Listener | None:
        """Return a listener, which is added to the host's and exports its own metrics; None: the extension has none."""
        return None

    @property
    def callbacks(self) -> Callbacks | None:
        """Return what delivers results to callbacks; None: the extension does not."""
        return None

    def status_line(self) -> str:
        """Return what it says about the daemon in `GetStatus` and on the page; empty: nothing."""
        return ""

    def calls(self) -> Mapping[str, Method]:
        """Return the calls that it serves, by name. Without the extension they end with UNIMPLEMENTED."""
        return {}

    def routes(self, _methods: HttpMethods) -> HttpParts:
        """Return its pages and streams on the HTTP site. `methods`: the service's calls, as served over HTTP."""
        return HttpParts()

    def identify(self, identify: Identify) -> Identify:
        """Wrap the identification of callers, which every call goes through."""
        return identify

    def servers(self) -> Sequence[grpc.aio.Server]:
        """Return further gRPC servers for the service's calls. The daemon starts and stops them."""
        return ()

    def readiness(self) -> Sequence[str]:
        """Return lines to add to the answer of `/readyz`."""
        return ()

    async def open(self) -> None:
        """Raises `StartupError`."""

    def restore(self, journal: OpenJournal) -> None:
        """Restore the extension's data from the journal."""

    def start(self) -> None:
        """Begin to work."""

    def serving(self) -> None:
        """Clients can connect now."""

    def reload(self) -> None:
        """Read its files again. Errors are logged, and the previous content of the files stays in force."""

    def terminate(self) -> None:
        """Begin to end, without waiting."""

    async def close(self, _grace_s: float) -> None:
        """End within `grace_s` seconds."""


def settings_class(extensions: Sequence[type[Extension]]) -> type[Settings]:
    """Return the settings of the core and of these extensions as one class."""
    added = [extension.settings for extension in reversed(extensions) if extension.settings is not BaseModel]
    return type(Settings.__name__, (*added, Settings), {"__doc__": Settings.__doc__, "__module__": __name__})


def own_settings(settings: Settings, model: type[Own]) -> Own:
    """Return the settings that an extension has added."""
    assert isinstance(settings, model), f"the settings were loaded without {model.__name__}: see `settings_class`"
    return settings


def chosen(extensions: Sequence[type[Extension]], settings: Settings) -> list[type[Extension]]:
    """Return the extensions that `settings.extensions` names, in the order of `extensions`.

    Raises `StartupError` for an unknown name, and for a setting that needs an extension that is not chosen.
    """
    known = [extension.name for extension in extensions]
    names = {"all": known, "none": []}.get(settings.extensions, settings.extensions.split())
    if unknown := [name for name in names if name not in known]:
        raise StartupError(f"extensions: unknown extension {unknown[0]!r}; known: all, none, {', '.join(known)}")
    for extension in extensions:
        used = [name for name in extension.needed_for.split() if attrgetter(name)(settings)]
        if used and extension.name not in names:
            raise StartupError(f"{used[0]} is set, but the extension {extension.name} is not loaded")
    return [extension for extension in extensions if extension.name in names]
