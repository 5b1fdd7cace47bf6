"""The part of `make abuse` that runs with the test suite, and tests of single defences."""
