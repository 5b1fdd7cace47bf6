"""The oracle: a naive purgatory written from the specification alone, to compare the engine with."""
