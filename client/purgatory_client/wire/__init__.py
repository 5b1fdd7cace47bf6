"""Conversion between values and messages: waits, events and results as the protobuf messages of `purgatory.v1`."""
