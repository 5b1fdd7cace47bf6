"""Makes commands of async functions: adds the options that all commands have, and turns errors into exit codes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer
from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import EventRefused, InvalidRequest, PurgatoryClientError, Unavailable
from typer import Option

from purgatory.cli import render
from purgatory.cli.exit_codes import Exit, exit_of_error
from purgatory.cli.parsing import UsageError

T = TypeVar("T")

_Option: Final = partial(Option, rich_help_panel="Connection")
_ADDRESS: Final = _Option(
    "--address",
    "-a",
    metavar="HOST:PORT",
    envvar="PURGATORY_ADDRESS",
    help="The daemon's gRPC address, or several: a:7440,b:7440.",
)
OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "as_json": (Annotated[bool, Option("--json", help="Print JSON instead of text.")], False),
    "address": (Annotated[str, _ADDRESS], DEFAULT_ADDRESS),
    "tls": (Annotated[bool, _Option("--tls", help="Use TLS and trust the public certificate authorities.")], False),
}
"""The options that all commands have, with their defaults."""
_FILES: Final = {
    "tls_ca": "Certificate authorities to trust (PEM file).",
    "tls_certificate": "Client certificate (PEM file).",
    "tls_key": "Private key of the client certificate (PEM file).",
    "token_file": "File with the bearer token.",  # other users can see a command line, so the token is not an option
}


def file_option(name: str) -> Any:  # noqa: ANN401 - as typer has it
    """The option for one of these files."""
    return _Option(metavar="FILE", envvar=f"PURGATORY_{name.upper()}", help=_FILES[name])


OPTIONS.update({name: (Annotated[Path | None, file_option(name)], None) for name in _FILES})


def with_client(function: Callable[..., Awaitable[Exit]], interrupted: str, *, as_json: bool) -> Callable[..., None]:
    """Make a command of a function whose first parameter is a connected client and which returns the exit code.

    `interrupted` is the message after Ctrl-C, with the function's arguments in braces. `as_json`: has `--json`.
    """
    common = {name: option for name, option in OPTIONS.items() if as_json or name != "as_json"}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in common.items()
    ]

    @wraps(function)
    def command(**given: Any) -> NoReturn:  # noqa: ANN401 - as the function has them
        options = {name: given.pop(name) for name in common}
        render.AS_JSON.set(options.pop("as_json", False))
        raise typer.Exit(_run(options, partial(function, **given), interrupted.format(**given)))

    signature = inspect.signature(function)
    parameters = [*list(signature.parameters.values())[1:], *added]
    adorned: Any = command
    adorned.__signature__ = signature.replace(parameters=parameters)
    adorned.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _run(options: dict[str, Any], call: Callable[[AsyncClient], Awaitable[Exit]], interrupted: str) -> Exit:
    try:
        return asyncio.run(connected(options, call))
    except KeyboardInterrupt:
        render.error_line(f"interrupted; {interrupted}")
        return Exit.INTERRUPTED
    except UsageError as error:
        render.error_line(str(error))
        return Exit.USAGE
    except PurgatoryClientError as error:
        message = str(error)
        if isinstance(error, Unavailable) and not error.is_answer:
            message = f"the daemon at {error.address or options['address']} is not available: {error}"
        elif isinstance(error, InvalidRequest | EventRefused):
            message = f"refused: {error}"
        render.error_line(message)
        return exit_of_error(error)


async def connected(options: dict[str, Any], call: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Call with a client that has these options. Raises UsageError if they are invalid."""
    security = {name: value for name, value in options.items() if name.startswith("tls")}
    try:
        made = AsyncClient(options["address"], name="cli", token=options["token_file"], **security)
    except InvalidRequest as error:
        raise UsageError(error.message) from error
    async with made as client:
        return await call(client)
