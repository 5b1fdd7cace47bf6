"""The tables of features, paths and faults: what each world draws is declared, and each feature is tested somewhere."""

import pytest

from tests.histories.history import WORLDS, world_of
from tests.histories.planted import PLANTED
from tests.histories.tables import CANNOT, ELSEWHERE, FAULTS, FEATURES, PATHS, Seen

pytestmark = pytest.mark.slow  # worlds import Spark and Kafka


def test_worlds_draw_only_what_the_tables_declare() -> None:
    for world in map(world_of, WORLDS):
        declared = set(world.FEATURES), set(world.PATHS), set(world.FAULTS)
        known = FEATURES.keys(), PATHS.keys(), FAULTS.keys()
        assert all(some <= every for some, every in zip(declared, known, strict=True)), world.__name__
    assert {planted.world for planted in PLANTED.values()} <= WORLDS.keys()


def test_each_feature_is_drawn_by_a_world_or_tested_elsewhere() -> None:
    drawn = {feature for world in map(world_of, WORLDS) for feature in world.FEATURES}
    assert drawn | ELSEWHERE.keys() == FEATURES.keys()
    assert not drawn & ELSEWHERE.keys()


def test_missing_pairs_are_those_drawn_that_can_occur() -> None:
    seen = Seen()
    seen.note(["signal"], "unary", "none")
    assert ("returning session", "unary") in CANNOT
    missing = seen.missing(["signal", "returning session"], ["unary", "none", "cut"])
    assert missing == [("signal", "cut"), ("returning session", "none"), ("returning session", "cut")]
