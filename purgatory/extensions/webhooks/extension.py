"""The webhooks extension."""

from collections.abc import Mapping, Sequence
from typing import Final

from purgatory import sizes
from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.webhooks.signing import CannotSendWebhooks
from purgatory.extensions.webhooks.webhooks import Webhooks, WithWebhooks
from purgatory.service.errors import invalid_argument
from purgatory.service.listeners.listener import Listener
from purgatory.service.recovery import OpenJournal
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.handlers import Method
from purgatory.service.rpc.inspection_calls import held_answer, make_token, page_size, read_token
from purgatory.service.sessions.session import Callbacks
from purgatory.v1 import webhook_pb2 as wire

LISTING: Final = "dead letters"
IDS_MAX: Final = 1_000


class WebhooksExtension(Extension):
    name = "webhooks"
    settings = WithWebhooks
    needed_for = "webhooks.allowed_hosts"

    def __init__(self, core: Core) -> None:
        self._host = core.host
        try:
            self._webhooks = Webhooks(core.host, own_settings(core.settings, WithWebhooks).webhooks)
        except CannotSendWebhooks as error:
            raise StartupError(str(error)) from None

    @property
    def listener(self) -> Listener:
        return self._webhooks

    @property
    def callbacks(self) -> Callbacks:
        return self._webhooks

    def calls(self) -> Mapping[str, Method]:
        return {
            "ListDeadLetters": self._list_dead_letters,
            "ResendDeadLetters": self._resend_dead_letters,
            "DeleteDeadLetters": self._delete_dead_letters,
        }

    async def _list_dead_letters(
        self, request: wire.ListDeadLettersRequest, call: Call
    ) -> wire.ListDeadLettersResponse:
        """One page of the letters that the caller may see. A page token of another kind of request is refused."""
        self._host.gate.check_answer(call.account)
        place = read_token(LISTING, request.page_token, (int,))
        above = 0 if place is None else int(place[0])
        size, bytes_left = page_size(request.page_size), sizes.PAGE_BYTES_MAX
        response = wire.ListDeadLettersResponse()
        for number, letter in self._webhooks.letters.above(above):
            if not self._webhooks.may_see(call.account, letter):
                continue
            if len(response.dead_letters) == size or bytes_left <= 0:
                response.next_page_token = make_token(LISTING, [above])
                break
            response.dead_letters.append(letter)
            bytes_left -= letter.ByteSize()
            above = number
        return held_answer(self._host, response, call)

    async def _resend_dead_letters(
        self, request: wire.ResendDeadLettersRequest, call: Call
    ) -> wire.ResendDeadLettersResponse:
        """Start to resend the named letters, or all letters that the caller may see."""
        letters, unknown = self._named(request.webhook_ids, call)
        if not request.webhook_ids:
            letters = self._visible(call)
        for letter in letters:
            self._webhooks.resend(letter)
        return wire.ResendDeadLettersResponse(resent=len(letters), unknown_webhook_ids=unknown)

    async def _delete_dead_letters(
        self, request: wire.DeleteDeadLettersRequest, call: Call
    ) -> wire.DeleteDeadLettersResponse:
        """Delete the named letters. An empty list is refused: it must not mean all."""
        if not request.webhook_ids:
            raise invalid_argument("webhook_ids", "no dead letter named; give the ids to delete")
        letters, unknown = self._named(request.webhook_ids, call)
        for letter in letters:
            self._webhooks.delete(letter)
        await self._host.journal.durable()
        return wire.DeleteDeadLettersResponse(deleted=len(letters), unknown_webhook_ids=unknown)

    def _visible(self, call: Call) -> list[wire.DeadLetter]:
        letters = (letter for _, letter in self._webhooks.letters.above(0))
        return [letter for letter in letters if self._webhooks.may_see(call.account, letter)]

    def _named(self, ids: Sequence[str], call: Call) -> tuple[list[wire.DeadLetter], list[str]]:
        """Return the letters with these ids that the caller may see, and the ids of no such letter."""
        if len(ids) > IDS_MAX:
            raise invalid_argument("webhook_ids", f"{len(ids)} ids given; at most {IDS_MAX} are allowed")
        found = {letter.webhook_id: letter for letter in self._visible(call)}
        named = dict.fromkeys(ids)
        return [found[one] for one in named if one in found], [one for one in named if one not in found]

    def restore(self, journal: OpenJournal) -> None:
        self._webhooks.restore(journal.dead_letters())

    def start(self) -> None:
        self._webhooks.start()

    def reload(self) -> None:
        self._webhooks.reload()

    async def close(self, grace_s: float) -> None:
        await self._webhooks.stop(grace_s)
