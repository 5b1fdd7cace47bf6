"""A source for MySQL and MariaDB: executed transactions of a primary and its replicas."""

from purgatory.source_uri import SourceUri
from purgatory_connectors.mysql.mysql_source import MysqlSource


def open_source(uri: SourceUri) -> MysqlSource:
    """Create the source for this address. Raises SourceRefused, SourceUriInvalid."""
    return MysqlSource(uri)
