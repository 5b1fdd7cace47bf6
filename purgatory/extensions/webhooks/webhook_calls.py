"""RPC handlers for dead letters: list them, and send them again."""

from typing import Final

from purgatory.extensions.webhooks.webhooks import Webhooks
from purgatory.service.errors import invalid_argument
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.inspection_calls import PAGE_BYTES_MAX, make_token, page_size, read_token
from purgatory.v1 import webhook_pb2 as wire

LISTING: Final = "dead letters"
RESENT_MAX: Final = 1_000


def list_dead_letters(
    webhooks: Webhooks, request: wire.ListDeadLettersRequest, call: Call
) -> wire.ListDeadLettersResponse:
    """One page of the letters that the caller may see. A page token of another kind of request is refused."""
    place = read_token(LISTING, request.page_token, (int,))
    above = 0 if place is None else int(place[0])
    size, bytes_left = page_size(request.page_size), PAGE_BYTES_MAX
    response = wire.ListDeadLettersResponse()
    for number, letter in webhooks.letters.above(above):
        if not webhooks.may_see(call.account, letter):
            continue
        if len(response.dead_letters) == size or bytes_left <= 0:
            response.next_page_token = make_token(LISTING, [above])
            break
        response.dead_letters.append(letter)
        bytes_left -= letter.ByteSize()
        above = number
    return response


def resend_dead_letters(
    webhooks: Webhooks, request: wire.ResendDeadLettersRequest, call: Call
) -> wire.ResendDeadLettersResponse:
    """Start to resend the named letters, or all letters that the caller may see."""
    if len(request.webhook_ids) > RESENT_MAX:
        raise invalid_argument("webhook_ids", f"{len(request.webhook_ids)} ids given; at most {RESENT_MAX} are allowed")
    response = wire.ResendDeadLettersResponse()
    named = dict.fromkeys(request.webhook_ids)
    letters = [letter for _, letter in webhooks.letters.above(0) if webhooks.may_see(call.account, letter)]
    for letter in letters:
        if not named or letter.webhook_id in named:
            webhooks.resend(letter)
            response.resent += 1
    found = {letter.webhook_id for letter in letters}
    response.unknown_webhook_ids.extend(one for one in named if one not in found)
    return response
