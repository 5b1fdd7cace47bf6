"""Measurements: `make bench` measures this house beside its peers. Nothing here is imported by the product.

`python -m bench` is the harness; docs/performance.md says what is measured and how to repeat it.
"""
