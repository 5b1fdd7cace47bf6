"""The outbox: a file that makes a crash of the calling program safe, and what keeps it in step with the session."""
