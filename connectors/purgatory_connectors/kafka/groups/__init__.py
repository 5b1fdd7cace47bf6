"""Consumer groups and share groups: what they have committed, read from the log of commits or polled."""
