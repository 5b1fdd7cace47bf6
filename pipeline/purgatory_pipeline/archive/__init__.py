"""The intake: an archive's files found, checked, read, and every row accounted for."""
