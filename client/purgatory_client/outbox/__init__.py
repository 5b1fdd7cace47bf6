"""The outbox: a file that preserves waits across a crash of the program, and its coordination with the session."""
