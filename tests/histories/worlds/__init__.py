"""The worlds in which histories run; see the header of `tests.histories`."""
