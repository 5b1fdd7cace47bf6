"""The generic purgatory: operations that a program defines, with its own predicates. No marks, no partitions.

Programs use it through `purgatory.embedded`.
"""
