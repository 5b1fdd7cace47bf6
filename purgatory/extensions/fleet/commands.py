"""`purgatory fleet`: create, inspect and leave a fleet of daemons with one replicated log."""

import asyncio
import contextlib
import json
import sqlite3
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import click
from purgatory_client.aio import AsyncClient
from purgatory_client.errors import InvalidRequest, PurgatoryClientError, Unavailable
from purgatory_client.unary import shards_of

from purgatory.command_line import FILE, Command, ExitCodes, Whole
from purgatory.connection_flags import CONNECTION, FILES
from purgatory.extensions.fleet.fleet_view import LEADING, describe
from purgatory.extensions.fleet.settings import SHARDS_MAX
from purgatory.journal.directory import locked
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.integrity import faults
from purgatory.replicated_log.entry import Kind, unpacked
from purgatory.replicated_log.errors import FleetLogError, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.replicated_log.replica import MARK, PART, SNAPSHOT, LogPlace, forget_place, is_copy
from purgatory.replicated_log.replicated_log import ReplicatedLog, Snapshot
from purgatory.replicated_log.snapshots import store_snapshot, unpack

EXIT_FAILED: Final = 2
EXIT_WRONG: Final = 1
READ_S: Final = 1.0
PATIENCE_S: Final = 15.0
RETRY_S: Final = 0.5
ANSWER_S: Final = 5.0
LOG: Final = click.argument("uri", metavar="LOG", help="kafka://HOST:PORT/TOPIC or postgresql://HOST:PORT/DATABASE.")


@click.group(
    cls=ExitCodes,
    errors=(FleetLogError, JournalError, PurgatoryClientError, OSError, sqlite3.Error),
    failed=EXIT_FAILED,
)
def fleet() -> None: ...


@fleet.command()
@LOG
@click.option("--shards", type=Whole(0, SHARDS_MAX), default=1, help="Number of shards.")
@click.option("--from", "source", metavar="DIR", type=FILE, help="The data folder of a stopped daemon.")
def init(uri: str, shards: int, source: Path | None) -> int:
    """Create the log, or check one that exists. With --from, a journal becomes its beginning."""
    with contextlib.closing(open_log(uri, 0)) as log:
        if source is not None and shards != 1:
            raise LogRefused("--from makes one shard of a journal; its sessions cannot be divided")
        log.create(shards)
        _check(log, shards)
        end, snapshot = log.end(), log.last_snapshot()
        _check_snapshot(end, snapshot)
        if source is None:
            print("the log is ready")
            return 0
        reign = Reign()
        if end != 1 or snapshot is not None or reign.accept(log.read(0, PATIENCE_S)[0]) is None:
            raise LogRefused("the log is in use: --from needs a new one")
        with locked(source) as directory:
            found, _ = faults(directory)
            if found:
                raise damaged(source, found[0])
            store_snapshot(directory.database, log, LogPlace(reign.state))
        print(f"the log is ready, and begins with the journal in {source}. Start the daemons with empty folders")
        return 0


@fleet.command(cls=Command, params=[*FILES.values()])
@click.argument(
    "addresses",
    metavar="HOST:PORT...",
    nargs=-1,
    required=True,
    help="HTTP address of a daemon; with TLS: https://HOST:PORT.",
)
def status(
    addresses: tuple[str, ...],
    tls_ca: Path | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
) -> int:
    """Show what each daemon does: who leads, and how far the others are.

    Exit code 0 if all answer, exactly one leads, and all follow one log.
    """
    trusted = ssl.create_default_context(cafile=tls_ca)
    if tls_certificate is not None:
        trusted.load_cert_chain(tls_certificate, tls_key)
    token = token_file and token_file.read_text("utf-8").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    leaders, unanswered, logs = 0, 0, set[str]()
    for address in addresses:
        url = address if address.startswith("https://") else f"http://{address.removeprefix('http://')}"
        request = Request(f"{url.rstrip('/')}/fleet", headers=headers)  # noqa: S310 - as above
        try:
            with urlopen(request, timeout=ANSWER_S, context=trusted) as answer:  # noqa: S310 - as above
                view = json.load(answer)
        except (OSError, ValueError) as error:
            print(f"{address}: does not answer ({getattr(error, 'reason', error)})")
            unanswered += 1
            continue
        leaders += view["state"] == LEADING
        logs.update([view["log"]] if view["log"] else [])
        print(f"{address}: {describe(view)}")
    if len(logs) > 1:
        print(f"these daemons follow different logs: {', '.join(sorted(logs))}")
    return 0 if (leaders, unanswered, len(logs)) == (1, 0, 1) else EXIT_WRONG


@fleet.command(cls=Command, params=[*CONNECTION.values()])
@click.option("--balance", is_flag=True, help="In each shard, let the daemon lead that its target names first.")
def handover(address: str, balance: bool, token_file: Path | None, **tls: Any) -> int:  # noqa: ANN401 - as the client's
    """Let the standby lead. The leader exits, and its supervisor starts it again as a standby."""

    def client_of(daemon: str) -> AsyncClient:
        return AsyncClient(daemon, name="cli", token=token_file, **tls)

    return asyncio.run(_hand_over(client_of, address, balance=balance))


@fleet.command()
@LOG
@click.option("--shard", type=Whole(0, SHARDS_MAX), default=0, help="Which shard.")
def verify(uri: str, shard: int) -> int:
    """Read the whole log, and report lost entries; exit code 1 if there are any."""
    with contextlib.closing(open_log(uri, shard)) as log:
        _check(log, None)
        counts = dict.fromkeys(Kind, 0)
        try:
            end, snapshot = log.end(), log.last_snapshot()
            _check_snapshot(end, snapshot)
            reign = Reign(_begin(log, snapshot), unpacked)
            while reign.state.position + 1 < end:
                for entry in log.read(reign.state.position + 1, READ_S):
                    valid = reign.accept(entry)
                    if valid is not None:
                        counts[valid.kind] += 1
            if not reign.state.log_id:
                raise LogRefused("the log does not begin with the entry that `purgatory fleet init` writes")
        except FleetLogError as error:
            print(f"wrong: {error.args[0]}")
            return EXIT_WRONG
        print(f"log {reign.state.log_id.hex()}")
        print(f"epoch {reign.state.epoch}, position {reign.state.position}; {reign.void_entries} void entries")
        print(
            ", ".join(f"{count} {kind.name.lower()}s" for kind, count in counts.items() if kind is not Kind.UNREADABLE)
        )
        print("no snapshot" if snapshot is None else f"snapshot of position {snapshot.position}")
        return 0


@fleet.command()
@click.argument("folder", metavar="DIR", type=FILE, help="The daemon's data folder.")
def leave(folder: Path) -> int:
    """Turn the copy of a stopped daemon into a plain journal."""
    with locked(folder) as directory:
        if not is_copy(folder):
            raise JournalError(f"{folder} is not a copy of a fleet's log")
        forget_place(directory.database)
        (folder / MARK).unlink()
    print(f"{folder} is now a plain journal. Do not serve from another copy as well: both would answer")
    return 0


async def _hand_over(client_of: Callable[[str], AsyncClient], address: str, *, balance: bool) -> int:
    async with client_of(address) as client:
        if balance:
            targets = [one.address for one in await shards_of(client)]
            return max([await _balance(client_of, shard, target) for shard, target in enumerate(targets)])
        await client.hand_over()
    print("handing over: the leader ends, and a standby claims")
    return 0


async def _balance(client_of: Callable[[str], AsyncClient], shard: int, target: str) -> int:
    """Let the leader of a shard hand over if it is not the first daemon of the target."""
    first, *others = target.split(",")
    try:
        async with client_of(first) as client:
            await shards_of(client)  # answered by standbys too
    except Unavailable as error:
        print(f"shard {shard}: {first} cannot lead: {error}")
        return EXIT_WRONG
    for other in others:
        # A standby refuses; one that is down does not lead.
        with contextlib.suppress(InvalidRequest, Unavailable):
            async with client_of(other) as client:
                await client.hand_over()
            print(f"shard {shard}: {other} hands over")
    return 0


def _check(log: ReplicatedLog, shards: int | None) -> None:
    """Check the log, again if it does not answer at once, as on a first connection to a busy server."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return log.check(shards)
        except LogUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_S)


def _check_snapshot(end: int, snapshot: Snapshot | None) -> None:
    if snapshot is not None and snapshot.position >= end:
        raise LogRefused(
            f"the log ends at position {end}, and its last snapshot at position {snapshot.position}: the snapshots "
            "belong to an earlier log. Delete them too, or restore the log"
        )


def _begin(log: ReplicatedLog, snapshot: Snapshot | None) -> ReignState:
    """The state in which a reader begins: nothing, or the last snapshot if the log has been trimmed."""
    begin = ReignState()
    if snapshot is not None:
        with tempfile.TemporaryDirectory(prefix=SNAPSHOT) as folder:
            begin = unpack(snapshot, Path(folder) / PART).state
        if not any(map(begin.ends_with, log.read(begin.position, PATIENCE_S)[:1])):
            raise LogRefused(f"the snapshot of position {begin.position} belongs to another log")
    try:
        log.read(0, READ_S)
    except LogTrimmed:
        if snapshot is None:
            raise
        return begin
    return ReignState()
