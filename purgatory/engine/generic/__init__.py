"""The generic purgatory: delayed operations defined by the program itself, with its own predicates. No marks, no
partitions.

Programs use it through `purgatory.embedded`.
"""
