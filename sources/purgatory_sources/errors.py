"""What can go wrong with a source. Every message is one line that says what to do."""


class SourceError(Exception):
    """Base of all errors of this package."""


class SourceRefused(SourceError):
    """No retry can cure it: a setting is wrong, or a right is missing. The program ends."""


class SourceUriInvalid(SourceRefused):
    """A source's address cannot be used as it is."""


class ExtraMissing(SourceRefused):
    """What the source reads with is not installed."""


class SourceStale(SourceError):
    """The source cannot see just now. Raised where somebody has asked for what only a look can answer."""
