"""Fuzzed requests: messages made from the descriptors of the contract, and raw bytes at the ports."""
