"""The engine broken on purpose, to see that the tests notice: `python -m tests.mutants`. See docs/testing.md."""
