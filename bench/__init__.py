"""Benchmarks: `make bench` compares the project with its peers. The product imports nothing from here.

`python -m bench` is the harness; docs/performance.md describes what is measured and how to repeat it.
"""
