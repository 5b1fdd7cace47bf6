"""What listens to the host: metrics, the journal, the archive."""
