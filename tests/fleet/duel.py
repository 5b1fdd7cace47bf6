"""Daemons in miniature duel for a real log while they are stopped, continued and killed; then the log is audited.

Each process follows the log, claims when it has been silent, appends groups and notes each in a file of its own once it
is acknowledged, before the next one. `python -m tests.fleet.duel URL --seconds 60` runs it on any log.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from purgatory.replicated_log.entry import Kind
from purgatory.replicated_log.errors import CutOff, Fenced, LogUnavailable
from purgatory.replicated_log.log_writer import LogWriter
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.reign import Reign
from purgatory.replicated_log.replicated_log import ReplicatedLog
from tests.fleet.audit import audit, read_all

SILENCE_S: Final = 0.5
ROOT: Final = Path(__file__).resolve().parent.parent.parent
LARGE_BYTES: Final = 1_900_000
"""A group of three parts."""


class Figures(NamedTuple):
    """What happened in a duel."""

    stops: int
    kills: int
    reigns: int
    resignations: int
    entries: int
    void: int
    groups: int
    acknowledged: int
    fenced: int
    cut_off: int

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self._asdict().items())


class Player:
    """One process: a daemon's life after the other."""

    def __init__(self, url: str, notes: Path) -> None:
        self._url: Final = url
        self._notes: Final = notes.open("a", buffering=1)
        self._numbers: Final = itertools.count()
        self._chance: Final = random.Random(os.getpid())

    def live(self) -> None:
        """Follow, claim and lead, until the reign is over. A real daemon exits then."""
        log, reign = open_log(self._url), Reign()
        writer = LogWriter(log, reign, lambda _: None)
        try:
            catch_up(writer, log)
            while self._follow(writer, reign):
                pass
            claim = writer.claim(0, address="127.0.0.1:1")
            self._note("leads", str(claim.epoch))
            while True:
                self._append(writer, LARGE_BYTES if self._chance.random() < 0.01 else 200)
                if self._chance.random() < 0.001:
                    writer.append(Kind.RESIGNATION, 0)
                    self._note("resigned")
                    return
        except Fenced:
            self._note("fenced")
        except (CutOff, LogUnavailable):
            self._note("cut_off")
        finally:
            log.close()

    def _follow(self, writer: LogWriter, reign: Reign) -> bool:
        """Wait for a valid entry; False: there was none, or the leader has resigned."""
        until = time.monotonic() + SILENCE_S
        while time.monotonic() < until:
            if writer.follow(SILENCE_S / 2):
                return bool(reign.state.writer)
        return False

    def _append(self, writer: LogWriter, size: int) -> None:
        content = f"{os.getpid()}-{next(self._numbers)} ".encode().ljust(size, b".")
        entry = writer.append(Kind.GROUP, 0, content)
        self._note("acknowledged", content[:40].split()[0].decode(), str(entry.position))

    def _note(self, *words: str) -> None:
        self._notes.write(" ".join(words) + "\n")


def catch_up(writer: LogWriter, log: ReplicatedLog) -> None:
    """Read and apply everything up to the end of the log as of now."""
    end = log.end()
    while writer._reign.state.position + 1 < end:
        writer.follow(1.0)


def duel(url: str, folder: Path, seconds: float, reigns: int, players: int = 3, seed: int = 7) -> Figures:
    """Let players duel for at least this long and this many reigns, and check what they noted against the log."""
    chance, notes = random.Random(seed), itertools.count()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.fleet.duel", url, "--player", str(folder / f"player-{next(notes)}")]
        return subprocess.Popen(command, cwd=ROOT)

    running = [start() for _ in range(players)]
    began_s, stops, kills = time.monotonic(), 0, 0
    try:
        while time.monotonic() - began_s < seconds or lines(folder).count("leads") < reigns:
            assert time.monotonic() - began_s < seconds + 300, f"too few reigns: {lines(folder).count('leads')}"
            time.sleep(chance.uniform(0.2, 1.0))
            victim = chance.randrange(players)
            assert running[victim].poll() is None, "a player has ended"
            if chance.random() < 0.75:
                stops += 1
                running[victim].send_signal(signal.SIGSTOP)
                time.sleep(chance.choice((0.3, 1.0, 2.5)))
                running[victim].send_signal(signal.SIGCONT)
            else:
                kills += 1
                running[victim].kill()
                running[victim].wait()
                running[victim] = start()
    finally:
        for player in running:
            player.kill()
            player.wait()
    return check(url, folder, stops, kills)


def lines(folder: Path) -> list[str]:
    """The first word of each note."""
    return [line.partition(" ")[0] for path in folder.iterdir() for line in path.read_text("utf-8").splitlines()]


def check(url: str, folder: Path, stops: int, kills: int) -> Figures:
    """Compare the notes with the log. Raises AssertionError if an acknowledged group does not count exactly once."""
    log = open_log(url)
    entries = list(read_all(log))
    log.close()
    counted = audit(entries)
    positions = {group.content[:40].split()[0].decode(): group.position for group in counted}
    assert len(positions) == len(counted), "a group counts twice"
    reign = Reign()
    judged = [reign.accept(entry) for entry in entries]
    valid = [one for one in judged if one is not None and one.kind is Kind.GROUP and not one.more]
    assert [one.content for one in valid] == [group.content for group in counted], "a reader disagrees with the audit"
    noted = [line.split() for path in folder.iterdir() for line in path.read_text("utf-8").splitlines(keepends=True)
             if line.endswith("\n")]  # fmt: skip
    acknowledged = {words[1]: int(words[2]) for words in noted if words[0] == "acknowledged"}
    lost = {name for name, position in acknowledged.items() if positions.get(name) != position}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged groups are lost"
    tally = [words[0] for words in noted]
    return Figures(
        stops, kills, tally.count("leads"), tally.count("resigned"), len(entries), reign.void_entries, len(counted),
        len(acknowledged), tally.count("fenced"), tally.count("cut_off"),
    )  # fmt: skip


def main() -> None:
    """Run a duel on a log that exists, or one player of it."""
    parser = argparse.ArgumentParser("python -m tests.fleet.duel", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--reigns", type=int, default=3)
    parser.add_argument("--player", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.player is not None:
        player = Player(given.url, given.player)
        while True:
            player.live()
    with tempfile.TemporaryDirectory() as folder:
        print(duel(given.url, Path(folder), given.seconds, given.reigns))


if __name__ == "__main__":
    main()
