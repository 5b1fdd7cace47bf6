"""The extensions of the daemon. A folder can be deleted together with its lines in this file.

`extension.py` of each folder implements `purgatory.extension.Extension`.
"""

from typing import Final

from purgatory.extension import Extension, settings_class
from purgatory.extensions.archive.extension import ArchiveExtension
from purgatory.extensions.connectors.extension import ConnectorsExtension
from purgatory.extensions.fleet.extension import FleetExtension
from purgatory.extensions.lag.extension import LagExtension
from purgatory.extensions.page.extension import PageExtension
from purgatory.extensions.ready.extension import ReadyExtension
from purgatory.extensions.tracing.extension import TracingExtension
from purgatory.extensions.webhooks.extension import WebhooksExtension

ALL: Final[tuple[type[Extension], ...]] = (
    FleetExtension,
    TracingExtension,
    ArchiveExtension,
    WebhooksExtension,
    PageExtension,
    ReadyExtension,
    LagExtension,
    ConnectorsExtension,
)
"""In the order in which they open. They close in reverse order, after the host: connectors first, which would otherwise
be restarted during a slow shutdown; webhooks deliver the last results; the archive writes its last files; the tracing
spans of both are sent.
"""

ALL_SETTINGS: Final = settings_class(ALL)
"""The settings of a daemon that may load all of them."""
