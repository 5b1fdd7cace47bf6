"""The extension of ready gates."""

from purgatory.extension import Core, Extension, HttpParts
from purgatory.extensions.ready.ready_gates import ReadyGates
from purgatory.extensions.ready.ready_page import ReadyPage
from purgatory.service.http.http_calls import HttpMethods


class ReadyExtension(Extension):
    """Serves `/v1/ready`."""

    name = "ready"

    def __init__(self, core: Core) -> None:
        self._gates = ReadyGates(core.host)
        self._certificate = core.settings.tls.certificate_file

    def routes(self, methods: HttpMethods) -> HttpParts:
        return HttpParts(applications={"/v1/ready": ReadyPage(self._gates, methods, self._certificate)})

    def serving(self) -> None:
        self._gates.is_open = True
