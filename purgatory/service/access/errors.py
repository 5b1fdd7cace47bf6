"""What is wrong with the files that say who may do what."""


class AccessError(Exception):
    """A policy, a file of tokens or a key set cannot be used. The message names the place."""
