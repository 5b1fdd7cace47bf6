"""A seeded simulator: it drives engine and oracle with the same hostile sequence and compares them after every step.

`python -m tests.simulator --seed 7 --steps 20000`. The same seed gives the same trace, including its hash.
"""
