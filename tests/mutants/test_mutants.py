"""The list of mutants cannot rot: each replaces a text that is there, by code that differs and can be read."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.catalogue import ALL
from tests.mutants.generated import generated
from tests.mutants.mutant import Mutant, StaleMutant
from tests.mutants.trees import ROOT

ENGINE = ROOT / "purgatory" / "engine"


def text_of(mutant: Mutant) -> str:
    return (ENGINE / f"{mutant.module}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_mutant_fits_the_engine(mutant: Mutant) -> None:
    """Its text is there exactly once, and what takes its place is another program."""
    text = text_of(mutant)
    broken = mutant.applied_to(text)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(text))


def test_mutants_have_names_of_their_own() -> None:
    """No two mutants of a module are called the same."""
    names = [(mutant.module, mutant.name) for mutant in ALL]
    assert len(set(names)) == len(names)


def test_stale_mutant_is_an_error() -> None:
    """A text that is gone, or there twice, is said, not passed over."""
    with pytest.raises(StaleMutant, match="0 times"):
        Mutant("gone", "wheel", "no such text", "").applied_to("text")
    with pytest.raises(StaleMutant, match="2 times"):
        Mutant("twice", "wheel", "text", "").applied_to("text text")


def test_drawn_mutants_can_be_read() -> None:
    """Mutants from the syntax trees are programs too, and the same ones for the same seed."""
    drawn = generated(50, seed=1)
    assert drawn == generated(50, seed=1)
    for mutant in drawn:
        assert ast.dump(ast.parse(mutant.applied_to(text_of(mutant)))) != ast.dump(ast.parse(text_of(mutant)))
