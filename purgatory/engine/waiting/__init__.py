"""Pending operations: tables, watches and the timing wheel."""
