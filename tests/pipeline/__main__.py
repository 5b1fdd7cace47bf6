"""The expensive checks of streams, in full; the test suite runs each of them in a small form.

    python -m tests.pipeline stream-kills --count 20 [--executors]
    python -m tests.pipeline result-kills --count 10
    python -m tests.pipeline stream-histories --count 200 --steps 10000 --processes 2

Each prints what it found and exits with 1 if an outcome was lost, wrong or duplicated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.pipeline.datasource import result_kills
from tests.pipeline.stream import stream_histories, stream_kills


def main() -> int:
    """Run one check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=("stream-kills", "result-kills", "stream-histories"))
    parser.add_argument("--count", type=int, default=20, help="kills, or histories")
    parser.add_argument("--seed", type=int, default=1, help="of the first history, or of the kills")
    parser.add_argument("--steps", type=int, default=10_000, help="steps of a history")
    parser.add_argument("--processes", type=int, default=1, help="histories that run at the same time")
    parser.add_argument("--executors", action="store_true", help="kill executors of a cluster, not the whole stream")
    options = parser.parse_args()
    if options.check == "stream-histories":
        return stream_histories.run(options.count, options.steps, options.seed, options.processes)
    with tempfile.TemporaryDirectory(prefix=f"{options.check}-") as name:
        folder = Path(name)
        if options.check == "result-kills":
            return result_kills.run(folder, options.count, options.seed)
        return stream_kills.run(folder, options.count, options.seed, executors=options.executors)


if __name__ == "__main__":
    sys.exit(main())
