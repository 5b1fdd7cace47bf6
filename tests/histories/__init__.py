"""The history machine: random histories of calls in several worlds, one judge, and a count of the pairs that were seen.

`python -m tests.histories --world engine --seed 7 --seconds 60`. A world is a module of `worlds` with `PATHS`, `FAULTS`
(rows of `tables` that it has) and `run(history)`. `plan` draws calls, `judge` has the rules that hold everywhere, and
`tables` has the features, paths, faults and sizes.
"""
