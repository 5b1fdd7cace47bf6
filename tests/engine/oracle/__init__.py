"""The oracle: a naive purgatory written from the specification alone, to compare the engine with."""

from tests.engine.oracle.purgatory import Oracle

__all__ = ["Oracle"]
