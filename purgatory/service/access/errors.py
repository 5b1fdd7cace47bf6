"""The error of unusable access files."""


class AccessError(Exception):
    """A policy, a token file or a key set is unusable. The message names the place."""
