"""Sources: programs that tell daemons by themselves where Kafka, PostgreSQL, Redis and others stand.

They know the client and, of the daemon, only the formats of addresses and of the log. The names exported here are for
connectors in other packages (docs/connectors.md).
"""

from purgatory.source_uri import SourceUri, SourceUriInvalid
from purgatory_connectors.errors import SourceRefused, SourceStale
from purgatory_connectors.publisher.mark_rules import RisingMarks, StaleMark
from purgatory_connectors.publisher.observation import End, Observation, SourceState, StaleMarks
from purgatory_connectors.publisher.polled_source import POLL_OPTIONS, PolledSource, Unreadable
from purgatory_connectors.publisher.publisher import Publisher, Source

__all__ = [
    "POLL_OPTIONS", "End", "Observation", "PolledSource", "Publisher", "RisingMarks", "Source", "SourceRefused",
    "SourceStale", "SourceState", "SourceUri", "SourceUriInvalid", "StaleMark", "StaleMarks", "Unreadable",
]  # fmt: skip
