"""`purgatory dead-letters`: lists results that could not be delivered to their callbacks, and resends them."""

from typing import Annotated

from purgatory_client.aio import AsyncClient
from purgatory_client.views import DeadLetter
from typer import Option

from purgatory.cli import render
from purgatory.cli.completion import letters
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError


async def dead_letters(
    client: AsyncClient,
    resend: Annotated[
        list[str] | None, Option(metavar="ID", autocompletion=letters, help="Resend this letter now. May be repeated.")
    ] = None,
    resend_all: Annotated[bool, Option("--resend-all", help="Resend all letters now.")] = False,
) -> Exit:
    """List results that could not be delivered to their callbacks, or resend them.

    Exit code 16 if a given ID does not exist, or there is nothing to resend.
    """
    if resend and resend_all:
        raise UsageError("--resend and --resend-all cannot be combined")
    if not resend and not resend_all:
        _print([letter async for letter in client.dead_letters()])
        return Exit.OK
    count, unknown = await client.resend_dead_letters(resend or None)
    for one in unknown:
        render.error_line(f"not found: {one} (already delivered, or not the id of a dead letter)")
    text = f"resending {render.counted(count, 'letter')}" if count else "no letters to resend"
    render.print_either({"resent": count} | ({"unknown_webhook_ids": unknown} if unknown else {}), text)
    return Exit.OK if count and not unknown else Exit.NOT_FOUND


def _print(letters: list[DeadLetter]) -> None:
    if render.print_as_json(letters):
        return
    if not letters:
        render.print_lines("no dead letters")
    for letter in letters:
        operation = f"{render.escape(letter.session_id)}/{letter.operation_id}"
        render.print_lines(
            f"[bold]{render.escape(letter.webhook_id)}[/bold]  {operation}  {render.outcome_text(letter.outcome)}",
            f"  to {render.escape(letter.callback_url)}",
            f"  {render.counted(letter.attempts, 'attempt')}: {render.escape(letter.last_error)}",
        )
