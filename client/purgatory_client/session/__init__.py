"""Talking to the daemon: the session with and without I/O, the stream of events, single calls, retries."""
