"""Errors of access files and tokens."""


class AccessError(Exception):
    """A policy, a token file or a key set is unusable. The message names the place."""


class BadToken(Exception):
    """A JSON web token is invalid. The message gives the reason, and contains nothing of the token."""
