"""`purgatory dead-letters`: lists, resends and deletes results that could not be delivered to their callbacks."""

from purgatory_client.aio import AsyncClient
from purgatory_client.views import DeadLetter

from purgatory.cli import render
from purgatory.cli.completion import letter_option
from purgatory.cli.connection_options import WRITES, client_command
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, flag


@client_command(WRITES)
@letter_option("--resend", help="Resend this letter now. May be repeated.")
@flag("--resend-all", help="Resend all letters now.")
@letter_option("--delete", help="Delete this letter; its result is lost. May be repeated.")
async def dead_letters(client: AsyncClient, resend: tuple[str, ...], resend_all: bool, delete: tuple[str, ...]) -> Exit:
    """Exit code 16 if a given ID does not exist, or there is nothing to resend."""
    if [bool(resend), resend_all, bool(delete)].count(True) > 1:
        raise UsageError("--resend, --resend-all and --delete cannot be combined")
    if delete:
        return _report("deleted", "deleted", *await client.delete_dead_letters(delete))
    if resend or resend_all:
        return _report("resent", "resending", *await client.resend_dead_letters(resend or None))
    _print([letter async for letter in client.dead_letters()])
    return Exit.OK


def _report(field: str, verb: str, count: int, unknown: tuple[str, ...]) -> Exit:
    for one in unknown:
        render.error_line(f"no such dead letter: {one} (it may have been delivered or deleted)")
    done = [f"{verb} {render.counted(count, 'letter')}"] if count else []
    counts = {field: count} | ({"unknown_webhook_ids": unknown} if unknown else {})
    render.print_either(counts, *(done or ([] if unknown else ["no dead letters"])))
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
