"""What the live page costs the daemon, and how soon it is there."""

from functools import partial
from typing import Any, Final

from bench.drivers.page_viewers import OPEN_S
from bench.measure.lab import Lab
from bench.measure.pairing import Figure
from bench.measure.processes import run_of
from bench.measure.worker import Numbers

__all__ = ["first_paint", "viewed"]

VIEWERS: Final = {"now": "now,now,now,now,now", "each": "now,wheel,waits,sessions,ends"}
"""Five of them, on one view and on five."""
LANES: Final = 8
PAIRS: Final = 2
"""Times as many pairs as elsewhere: what is looked for is a fiftieth."""


def viewed(lab: Lab) -> None:
    """Columns with the page open five times beside the same without: what is done in a second of the daemon's
    processor, as the viewers take a part of the machine's.
    """
    daemon, client, viewers = lab.daemon(), lab.worker("bench.drivers.client"), lab.worker("bench.drivers.page_viewers")
    seconds, is_quick = 2 * lab.scale.seconds, lab.scale.runs == 1  # a measurement takes over two seconds of waiting
    work: dict[str, Any] = {"address": daemon.address, "batch": 500, "lanes": LANES, "seconds": seconds + 2 * OPEN_S}
    look: dict[str, Any] = {
        "address": daemon.address,
        "http_address": daemon.http_address,
        "process_id": daemon.process_id,
        "seconds": seconds,
    }

    def loaded(views: str) -> Numbers:
        client.begin("columns", **work)
        try:
            return viewers.run("view", views=views, **look)
        finally:
            client.result()

    for name, views in VIEWERS.items():
        lab.measure(
            [Figure(f"service/columns/batch=500/page-{name}=5", "ops/CPU s")],
            ("daemon", partial(loaded, views)),
            {"none": partial(loaded, "")},
            runs=1 if is_quick else PAIRS * lab.scale.runs,
            warm_up=not is_quick,
        )


def first_paint(lab: Lab) -> None:
    """The page in Chromium, on a daemon on which a million operations wait: by when something is painted, by when it
    has the first figures, and the bytes that went over the wire until then.
    """
    count, daemon, browser = lab.scale.total_pending, lab.daemon(), lab.worker("bench.drivers.page_paint")
    lab.worker("bench.drivers.parked").run("park", address=daemon.address, count=count, keys=1_000)
    for view in ("now", "waits"):
        lab.measure(
            [
                Figure(f"page/{view}/painted/pending={count}", "ms", "painted_ms"),
                Figure(f"page/{view}/shown/pending={count}", "ms", "shown_ms"),
                Figure(f"page/{view}/size", "B", "bytes"),
            ],
            ("daemon", run_of(browser, "open", http_address=daemon.http_address, view=view)),
            {},
        )
