"""The intake: finds, checks and reads an archive's files, and accounts for every row."""
