"""Callers: processes that load a server over loopback and measure what a caller sees."""
