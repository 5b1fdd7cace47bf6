"""The leader epoch cache on its own: what a new epoch drops, and its bound."""

from purgatory.engine.marks.epochs import ENTRIES_MAX, EpochCache


def test_an_epoch_without_records_is_dropped() -> None:
    """Epoch 2 and epoch 3 begin at the same offset: nothing was written in 2, so 1 answers for it."""
    cache = EpochCache()
    for epoch, start in ((1, 0), (2, 10), (3, 10)):
        cache.assign(epoch, start)
    assert cache.end_offset(2, 20) == (1, 10)
    assert cache.end_offset(3, 20) == (3, 20)


def test_the_newest_epochs_are_kept() -> None:
    """Of any number of epochs the newest thousand stay; an older one is answered by the oldest start."""
    cache = EpochCache()
    for epoch in range(ENTRIES_MAX + 500):
        cache.assign(epoch, 10 * epoch)
    assert len(cache.epochs) == ENTRIES_MAX
    assert cache.end_offset(501, 10**6) == (501, 5_020)
    assert cache.end_offset(3, 10**6) == (3, 5_000)
