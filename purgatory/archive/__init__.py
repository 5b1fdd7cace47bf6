"""The archive format, shared by the daemon that writes it and the pipeline that reads it."""
