"""`purgatory top`: a live view of pending, most watched and recently ended operations. Needs Textual (extra `top`)."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final

from purgatory_client.errors import PurgatoryClientError
from purgatory_client.unary import SingleCalls
from purgatory_client.views import EndedOperation, OperationOrder, Status
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from purgatory.cli.all_shards import AllShards
from purgatory.cli.parsing import ORDERS
from purgatory.cli.render import COLOURS, counts_line, outcome_text, pending_line, printable, span, waits_for
from purgatory.cli.tail import waited_for

INTERVAL_S: Final = 1.0
ROWS_MAX: Final = 500
"""Maximum rows of a view. With millions of waits pending, the daemon sorts and searches all of them."""
ENDED_KEPT: Final = 500
RETRY_S: Final = 1.0

Value = str | int | float


@dataclass(frozen=True)
class TopColumn:
    """A column of a view: its heading, width in characters (0: the remaining width), and value format."""

    heading: str
    width: int
    write: Callable[[Any], str] = str
    descends: bool = False
    """Whether sorting by this column puts the greatest value first."""


@dataclass
class TopView:
    """A view: its columns, the function that fetches its rows, and the column they are sorted by."""

    title: str
    columns: tuple[TopColumn, ...]
    fetch: Callable[[], Awaitable[list[tuple[Value, ...]]]]
    sorted_by: int
    reverse: bool = False


class Top(App[None]):
    """The live view. Text from other callers is never interpreted as markup, and unprintable characters are escaped."""

    TITLE = "purgatory"
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "view(0)", "waits"),
        Binding("2", "view(1)", "hot"),
        Binding("3", "view(2)", "ended"),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("space", "pause", "pause"),
        Binding("escape", "unfilter", "clear", show=False),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, client: AllShards) -> None:
        super().__init__()
        self._client: Final = client
        self._ended: Final[deque[EndedOperation]] = deque(maxlen=ENDED_KEPT)
        self._views: Final = (
            TopView(
                "waits",
                (
                    TopColumn("waits for", 0),
                    TopColumn("kind", 9),
                    TopColumn("left", 8, span),
                    TopColumn("waited", 8, span, descends=True),
                    TopColumn("session", 12),
                    TopColumn("id", 8, descends=True),
                ),
                self._waits,
                sorted_by=2,
            ),
            TopView(
                "hot names",
                (TopColumn("name", 0), TopColumn("what", 9), TopColumn("watched", 11, "{:,}".format, descends=True)),
                self._hot,
                sorted_by=2,
            ),
            TopView(
                "just ended",
                (
                    TopColumn("waited for", 0),
                    TopColumn("outcome", 9),
                    TopColumn("at", 8),
                    TopColumn("after", 8, span, descends=True),
                    TopColumn("late", 8, span, descends=True),
                    TopColumn("kind", 9),
                ),
                self._just_ended,
                sorted_by=2,
                reverse=True,
            ),
        )
        self._view = self._views[0]
        self._paused = False
        self._filter = ""
        self._rows: list[tuple[Value, ...]] = []
        self._matching = 0
        """Operations that the daemon ranked for the waits view."""
        self._before: Status | None = None
        self._problem = ""

    def compose(self) -> ComposeResult:
        yield Static(id="summary", markup=False)
        yield Static(id="title", markup=False)
        yield Input(placeholder="only rows that contain this; Enter keeps it, Escape clears it", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.run_worker(self._refresh_forever(), name="refresh")
        for shard in self._client.shards:
            self.run_worker(self._follow_forever(shard), name="tail")

    # Keys.

    def action_view(self, number: int) -> None:
        self._view = self._views[number]
        self._rows = []
        self._fetch_again()

    def action_sort(self) -> None:
        self._view.sorted_by = (self._view.sorted_by + 1) % len(self._view.columns)
        self._view.reverse = False
        self._fetch_again()

    def action_reverse(self) -> None:
        self._view.reverse = not self._view.reverse
        self._fetch_again()

    def action_filter(self) -> None:
        box = self.query_one(Input)
        box.display = True
        box.focus()

    def action_unfilter(self) -> None:
        self.query_one(Input).value = ""
        self._leave_filter(keep=False)

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._fetch_again()

    def on_input_submitted(self) -> None:
        self._leave_filter(keep=bool(self._filter))

    def on_resize(self) -> None:
        self._draw()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        if self._view.sorted_by == event.column_index:
            self._view.reverse = not self._view.reverse
        self._view.sorted_by = event.column_index
        self._fetch_again()

    def _fetch_again(self) -> None:
        """Show what there is in the new order, and fetch the rows that are due now."""
        self._draw()
        if not self._paused:
            self.run_worker(self._refresh_rows(), name="rows", exclusive=True, group="rows")

    def _leave_filter(self, *, keep: bool) -> None:
        self.query_one(Input).display = keep
        self.query_one(DataTable).focus()

    # Display.

    async def _refresh_forever(self) -> None:
        while True:
            if not self._paused:
                await self._refresh_rows()
            await asyncio.sleep(INTERVAL_S)

    async def _refresh_rows(self) -> None:
        view = self._view
        try:
            status = await self._client.status()
            rows = await view.fetch()
        except PurgatoryClientError as error:
            self._problem = printable(str(error))
            self._draw()
            return
        self._problem = ""
        self.query_one("#summary", Static).update(self._summary(status))
        self._before = status
        if view is self._view:
            self._rows = rows
            self._draw()

    async def _follow_forever(self, shard: SingleCalls) -> None:
        """Keeps what has just ended; over a daemon that restarts, too."""
        while True:
            with contextlib.suppress(PurgatoryClientError):
                async for ended in shard.tail():
                    self._ended.extend(ended.operations)
            await asyncio.sleep(RETRY_S)

    async def _waits(self) -> list[tuple[Value, ...]]:
        view, text = self._views[0], self._filter
        by = view.columns[view.sorted_by].heading.replace("left", "remaining")
        # By any other column, only the rows that expire first are sorted.
        order = ORDERS[by][view.reverse] if by in ORDERS else OperationOrder.LEAST_REMAINING
        ranked = await self._client.ranked_operations(order, limit=ROWS_MAX)
        self._matching = ranked.matching
        found = ranked.operations
        if text and ranked.matching > len(found):
            # The daemon searches names; `_draw` also searches the other columns of the rows that rank first.
            found = [*found, *(await self._client.ranked_operations(order, limit=ROWS_MAX, search=text)).operations]
        rows = {(one.session_id, one.operation_id, one.registered_time): one for one in found}.values()
        return [
            (waits_for(one), one.kind.name.lower(), one.remaining, one.waited, one.session_id, one.operation_id)
            for one in rows
        ]

    async def _hot(self) -> list[tuple[Value, ...]]:
        names = await self._client.hot_names(ROWS_MAX)
        return [(one.name, "key" if one.is_key else "partition", one.watched) for one in names]

    async def _just_ended(self) -> list[tuple[Value, ...]]:
        rows = ((one, one.ended_time.astimezone().strftime("%H:%M:%S")) for one in self._ended)
        return [
            (waited_for(one), outcome_text(one.outcome), at, one.waited, one.lateness, one.kind.name.lower())
            for one, at in rows
        ]

    def _summary(self, status: Status) -> str:
        rates = ", rates after the next refresh"
        if self._before is not None:
            names = ("registered", "satisfied", "failed", "expired", "cancelled")
            pairs = list(zip(status.kinds, self._before.kinds, strict=True))
            counts = {name: sum(getattr(now, name) - getattr(was, name) for now, was in pairs) for name in names}
            ended = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count and name != "registered")
            rates = f", since the last refresh {counts['registered']:,} registered, {ended or 'none ended'}"
        sources = [f"{source.name} {source.state}" for source in status.sources]
        named = f"sources: {', '.join(sources)}" if sources else "no sources"
        return "\n".join(map(printable, (pending_line(status) + rates, counts_line(status), named)))

    def _draw(self) -> None:
        table = self.query_one(DataTable)
        view, place = self._view, table.cursor_coordinate
        rows = [row for row in self._rows if self._filter.lower() in " ".join(map(str, row)).lower()]
        by = view.columns[view.sorted_by]
        rows.sort(key=lambda row: row[view.sorted_by], reverse=by.descends != view.reverse)
        table.clear(columns=True)
        fixed = sum(column.width for column in view.columns)
        left = max(12, self.size.width - fixed - 2 * len(view.columns) - 2)
        for number, column in enumerate(view.columns):
            arrow = " ▼" if number == view.sorted_by and by.descends != view.reverse else " ▲"
            heading = column.heading + (arrow if number == view.sorted_by else "")
            table.add_column(Text(heading), width=column.width or left)
        for row in islice(rows, ROWS_MAX):
            table.add_row(*(_cell(column, value) for column, value in zip(view.columns, row, strict=True)))
        table.move_cursor(row=min(place.row, len(rows) - 1), animate=False)
        state = " (paused)" if self._paused else ""
        total = max(len(self._rows), self._matching if view is self._views[0] else 0)
        shown = f"{len(rows):,}" if total == len(rows) else f"{len(rows):,} of {total:,}"
        self.query_one("#title", Static).update(f"{view.title}: {shown}{state}")
        if self._problem:
            self.query_one("#summary", Static).update(f"the daemon does not answer; trying again\n{self._problem}")


def _cell(column: TopColumn, value: Value) -> Text:
    text = printable(column.write(value))
    colours = {outcome_text(outcome): colour for outcome, colour in COLOURS.items()}
    style = colours.get(text, "") if column.heading == "outcome" else ""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
