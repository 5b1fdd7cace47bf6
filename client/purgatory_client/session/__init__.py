"""Communication with the daemon: the session with and without I/O, the stream of events, unary calls and retries."""
