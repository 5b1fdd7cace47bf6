"""All mutants that were picked by hand."""

from __future__ import annotations

from tests.mutants import generic, happening, marks, tape, timer, waiting, watching

ALL = (
    *timer.MUTANTS,
    *watching.MUTANTS,
    *marks.MUTANTS,
    *waiting.MUTANTS,
    *happening.MUTANTS,
    *generic.MUTANTS,
    *tape.MUTANTS,
)
