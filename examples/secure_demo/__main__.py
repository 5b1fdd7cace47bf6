"""Prints the table of calls. Exit code 1 if a call was allowed or refused unexpectedly."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from examples.secure_demo.calls import Row, all_rows
from examples.secure_demo.setting import serving


def table(rows: list[Row]) -> list[str]:
    """Format the rows as lines with aligned columns."""
    head = ("caller", "shows", "asks for", "was", "saw")
    cells = [head, *((row.caller, row.shows, row.asks, row.was, row.saw) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


async def run(folder: Path) -> int:
    async with serving(folder) as scene:
        rows = await all_rows(scene)
    print("\n".join(table(rows)))
    wrong = [row for row in rows if row.was != row.should]
    for row in wrong:
        print(f"{row.caller}, {row.asks}: should have been {row.should}", file=sys.stderr)
    print(f"{len(rows)} calls, {sum(row.was == 'allowed' for row in rows)} allowed; {len(wrong)} not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would log each handshake, and some must fail here
    with tempfile.TemporaryDirectory(prefix="secure-demo-") as name:
        sys.exit(asyncio.run(run(Path(name))))
