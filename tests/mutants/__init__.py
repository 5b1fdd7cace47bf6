"""Mutation testing: `make mutants` breaks the engine in small ways and checks that the tests notice."""
