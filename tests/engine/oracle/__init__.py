"""The oracle: a naive purgatory written from the specification alone, for comparison with the engine."""
