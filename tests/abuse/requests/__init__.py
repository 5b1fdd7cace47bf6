"""Fuzzed requests: messages generated from the descriptors of the contract, and raw bytes at the ports."""
