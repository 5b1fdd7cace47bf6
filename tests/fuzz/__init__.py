"""Fuzzing of everything that a peer can send: messages shaped by the contract's descriptors, and bytes of no shape."""
