"""The webhooks extension."""

from collections.abc import Mapping

from purgatory.extension import Core, Extension, StartupError, own_settings
from purgatory.extensions.webhooks.settings import WithWebhooks
from purgatory.extensions.webhooks.signing import CannotSendWebhooks
from purgatory.extensions.webhooks.webhook_calls import delete_dead_letters, list_dead_letters, resend_dead_letters
from purgatory.extensions.webhooks.webhooks import Webhooks
from purgatory.service.listeners.listener import Listener
from purgatory.service.recovery import OpenJournal
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.handlers import Method
from purgatory.service.rpc.inspection_calls import held_answer
from purgatory.v1 import webhook_pb2 as wire


class WebhooksExtension(Extension):
    """Delivers the results of sessions with a callback."""

    name = "webhooks"
    settings = WithWebhooks
    needed_for = "webhooks.allowed_hosts"

    def __init__(self, core: Core) -> None:
        self._host = core.host
        try:
            self._webhooks = Webhooks(core.host, own_settings(core.settings, WithWebhooks).webhooks)
        except CannotSendWebhooks as error:
            raise StartupError(str(error)) from None
        core.host.callbacks = self._webhooks

    @property
    def listener(self) -> Listener:
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
        self._host.gate.check_answer(call.account)
        return held_answer(self._host, list_dead_letters(self._webhooks, request, call), call)

    async def _resend_dead_letters(
        self, request: wire.ResendDeadLettersRequest, call: Call
    ) -> wire.ResendDeadLettersResponse:
        return resend_dead_letters(self._webhooks, request, call)

    async def _delete_dead_letters(
        self, request: wire.DeleteDeadLettersRequest, call: Call
    ) -> wire.DeleteDeadLettersResponse:
        response = delete_dead_letters(self._webhooks, request, call)
        await self._host.journal.durable()
        return response

    def restore(self, journal: OpenJournal) -> None:
        self._webhooks.restore(journal.dead_letters())

    def start(self) -> None:
        self._webhooks.start()

    def reload(self) -> None:
        self._webhooks.reload()

    async def close(self, grace_s: float) -> None:
        await self._webhooks.stop(grace_s)
