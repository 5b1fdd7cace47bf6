"""The generic purgatory: a program's own operations, tested by its own predicates; no marks, no partitions.

`purgatory.embedded` is the face that programs use.
"""
