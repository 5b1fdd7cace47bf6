"""Waits for signal keys."""

from tests.engine.world import World


def test_signal_ends_the_wait() -> None:
    """One signal ends a wait for one signal."""
    world = World()
    handle = world.wait_signal({"deploy": 1})
    assert world.signal("deploy").ended == 1
    assert world.outcome(handle) == "satisfied"
    item = world.item(handle)
    assert (item.name, item.error, item.required, item.reached) == (("deploy", -1), 0, 1, 1)


def test_signal_before_the_wait_counts() -> None:
    """A signal before the registration counts."""
    world = World()
    world.signal("deploy", 2)
    assert world.outcome(world.wait_signal({"deploy": 2})) == "satisfied"
    assert world.outcome(world.wait_signal({"deploy": 3})) == "pending"


def test_from_now_forgets_what_was() -> None:
    """Only later signals count; the result has the total count that this requires."""
    world = World()
    world.signal("deploy", 5)
    handle = world.wait_signal({"deploy": 2}, from_now=True)
    assert world.signal("deploy").ended == 0
    assert world.signal("deploy").ended == 1
    assert (world.item(handle).required, world.item(handle).reached) == (7, 7)


def test_all_keys_are_needed() -> None:
    """A wait for all keys ends with the last of them."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 2})
    world.signal("b", 2)
    assert world.outcome(handle) == "pending"
    assert world.signal("a").ended == 1
    assert world.errors(handle) == [0, 0]


def test_any_key_is_enough() -> None:
    """A wait for any key ends with the first; the result shows that the others were not reached."""
    world = World()
    handle = world.wait_signal({"a": 1, "b": 2}, any_key=True)
    world.signal("b", 1)
    assert world.outcome(handle) == "pending"
    assert world.signal("a").ended == 1
    assert (world.outcome(handle), world.errors(handle)) == ("satisfied", [0, 7])
    assert world.item(handle, "b").reached == 1
    world.assert_empty()


def test_one_event_wakes_all_who_wait_for_it() -> None:
    """Of waits for 1, 2 and 3 signals, two signals in one event end two."""
    world = World()
    handles = [world.wait_signal({"a": count}) for count in (1, 2, 3)]
    assert world.signal("a", 2).ended == 2
    assert [world.outcome(handle) for handle in handles] == ["satisfied", "satisfied", "pending"]
