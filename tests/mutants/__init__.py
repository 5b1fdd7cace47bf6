"""Mutation testing: `make mutants` breaks the engine in small ways and sees that the tests notice."""
