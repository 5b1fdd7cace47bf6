"""From the archive's files to the rows of a run, window by window."""
