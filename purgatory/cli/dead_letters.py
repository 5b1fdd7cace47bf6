"""`purgatory dead-letters`: lists results that could not be delivered to their callbacks, and resends them."""

from typing import Annotated, NoReturn

import typer
from purgatory_client.aio import AsyncClient
from purgatory_client.views import DeadLetter

from purgatory.cli import render
from purgatory.cli.connection_options import DEFAULT_ADDRESS, Address, AsJson, run
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError


def dead_letters(
    resend: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Resend this letter now. May be repeated.")
    ] = None,
    resend_all: Annotated[bool, typer.Option("--resend-all", help="Resend all letters now.")] = False,
    address: Address = DEFAULT_ADDRESS,
    as_json: AsJson = False,
) -> NoReturn:
    """List results that could not be delivered to their callbacks, or resend them.

    Exit code 16 if a given ID does not exist, or there is nothing to resend.
    """

    async def call(client: AsyncClient) -> Exit:
        if resend and resend_all:
            raise UsageError("--resend and --resend-all cannot be combined")
        if not resend and not resend_all:
            _print([letter async for letter in client.dead_letters()], as_json=as_json)
            return Exit.OK
        count, unknown = await client.resend_dead_letters(resend or None)
        document: dict[str, object] = {"resent": count} | ({"unknown_webhook_ids": unknown} if unknown else {})
        for one in unknown:
            render.error_line(f"not found: {one} (already delivered, or not the id of a dead letter)")
        text = f"resending {count} {render.plural('letter', count)}" if count else "no letters to resend"
        render.print_either(document if as_json else None, text)
        return Exit.OK if count and not unknown else Exit.NOT_FOUND

    raise typer.Exit(run(address, call))


def _print(letters: list[DeadLetter], *, as_json: bool) -> None:
    if not letters and not as_json:
        render.print_either(None, "no dead letters")
    for letter in letters:
        if as_json:
            render.print_json(_document(letter), indent=None)
            continue
        render.print_either(
            None,
            f"[bold]{render.escape(letter.webhook_id)}[/bold]  "
            f"{render.escape(letter.session_id)}/{letter.operation_id}  {render.outcome_text(letter.outcome)}",
            f"  to {render.escape(letter.callback_url)}",
            f"  {letter.attempts} {render.plural('attempt', letter.attempts)}: {render.escape(letter.last_error)}",
        )


def _document(letter: DeadLetter) -> dict[str, object]:
    return {
        "webhook_id": letter.webhook_id,
        "callback_url": letter.callback_url,
        "session_id": letter.session_id,
        "operation_id": letter.operation_id,
        "outcome": letter.outcome.name.lower(),
        "attempts": letter.attempts,
        "last_error": letter.last_error,
        "given_up_time": letter.given_up_time.isoformat(),
    }
