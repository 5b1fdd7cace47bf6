"""Values to messages and back: waits, events and results as the protobuf messages of `purgatory.v1`."""
