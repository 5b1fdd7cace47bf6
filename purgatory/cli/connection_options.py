"""The options that all commands have: address, output format, TLS and token; and running a command with them."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar, cast

import typer
from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import EventRefused, InvalidRequest, PurgatoryClientError, Unavailable

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit, exit_of_error
from purgatory.cli.parsing import UsageError

__all__ = ["DEFAULT_ADDRESS", "Address", "AsJson", "run", "secured"]

P = ParamSpec("P")
T = TypeVar("T")

Address = Annotated[
    str, typer.Option("--address", "-a", envvar="PURGATORY_ADDRESS", help="The daemon's gRPC address, host:port.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_SECURITY: Final[dict[str, Any]] = {
    "tls": Annotated[bool, typer.Option("--tls", help="Use TLS and trust the public certificate authorities.")],
    "tls_ca": Annotated[
        Path | None, typer.Option(envvar="PURGATORY_TLS_CA", help="Certificate authorities to trust (PEM file).")
    ],
    "tls_certificate": Annotated[
        Path | None, typer.Option(envvar="PURGATORY_TLS_CERTIFICATE", help="Client certificate (PEM file).")
    ],
    "tls_key": Annotated[
        Path | None, typer.Option(envvar="PURGATORY_TLS_KEY", help="Private key of the client certificate (PEM file).")
    ],
    "token_file": Annotated[
        Path | None, typer.Option(envvar="PURGATORY_TOKEN_FILE", help="File with the bearer token.")
    ],
}
"""Options for TLS and authentication. The token is read from a file, because other users can see a command line."""

_security_given: ContextVar[dict[str, Any]] = ContextVar("security_given")

Command = Callable[[AsyncClient], Awaitable[Exit]]


def secured(command: Callable[P, T]) -> Callable[P, T]:
    """Add the TLS and token options to a command. Their values reach `run` through a context variable."""

    @functools.wraps(command)
    def with_options(*args: P.args, **kwargs: P.kwargs) -> T:
        _security_given.set({name: kwargs.pop(name) for name in _SECURITY})
        return command(*args, **kwargs)

    signature = inspect.signature(command)
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "tls" else None, annotation=kind
        )
        for name, kind in _SECURITY.items()
    ]
    adorned = cast("Any", with_options)
    adorned.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *options])
    adorned.__annotations__ = {**command.__annotations__, **_SECURITY}
    return with_options


def run(address: str, command: Command, *, interrupted: str = "a wait is cancelled at the daemon") -> Exit:
    """Run a command and return its exit code. `interrupted` is the message after Ctrl-C: what happens to the wait."""
    try:
        return asyncio.run(_with_client(address, command))
    except KeyboardInterrupt:
        render.error_line(f"interrupted; {interrupted}")
        return Exit.INTERRUPTED
    except UsageError as error:
        render.error_line(str(error))
        return Exit.USAGE
    except PurgatoryClientError as error:
        message = str(error)
        if isinstance(error, Unavailable) and not error.is_answer:
            message = f"the daemon at {address} is not available: {error}"
        elif isinstance(error, InvalidRequest | EventRefused):
            message = f"refused: {error}"
        render.error_line(message)
        return exit_of_error(error)


async def _with_client(address: str, command: Command) -> Exit:
    options = dict(_security_given.get())
    token_file: Path | None = options.pop("token_file")
    async with AsyncClient(address, name="cli", token=token_file, **options) as client:
        return await command(client)
