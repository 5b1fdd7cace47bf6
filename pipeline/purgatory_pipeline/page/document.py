"""From the parts of a page to one HTML file that needs nothing else: no network, no other file.

The only place that writes HTML. Text that is not `Markup` is escaped by `Markup.format`; specifications of plots are
JSON in script elements, where `<`, `>` and `&` are spelled as JSON escapes. A content security policy names the two
scripts of the page by their hashes and allows nothing to be loaded: text that got through would have no effect.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import (
    Finding,
    Grid,
    Headline,
    LegendEntry,
    Page,
    PageColumn,
    PageTable,
    Plot,
    Section,
)

_PAGE: Final = Markup("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="subtitle">{subtitle}</p>
</header>
<main>
<dl class="facts">{facts}</dl>
{account}
{findings}
<nav aria-label="Sections"><ul>{contents}</ul></nav>
{sections}
</main>
<footer>{footer}</footer>
<script>{libraries}</script>
<script>{program}</script>
</body>
</html>
""")

LONG_CELL: Final = 26
"""Texts in tables that are longer than this may be broken; the others stay on one line."""
NOTICE_LENGTH_MAX: Final = 600
FOOTER_LENGTH_MAX: Final = 400
_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def write(page: Page, path: Path) -> None:
    """Writes the page aside and renames it, so that a reader never finds half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(render(page), encoding="utf-8", newline="\n")
    unfinished.replace(path)


def render(page: Page) -> str:
    """The whole file."""
    scripts, program = libraries(), _asset("page.js")
    numbers = itertools.count(1)
    return _PAGE.format(
        policy=_policy(scripts, program),
        title=page.title,
        subtitle=page.subtitle,
        style=Markup(_asset("page.css")),  # noqa: S704 -- our own file
        facts=Markup("\n").join(_fact(fact) for fact in page.facts),
        account=_section(page.account, numbers),
        findings=_findings(page.findings, {section.anchor: section.title for section in page.sections}),
        contents=Markup("\n").join(
            Markup('<li><a href="#{}">{}</a></li>').format(section.anchor, section.title) for section in page.sections
        ),
        sections=Markup("\n").join(_section(section, numbers) for section in page.sections),
        footer=page.footer,
        libraries=Markup(scripts),  # noqa: S704 -- Vega's own bundle
        program=Markup(program),  # noqa: S704 -- our own file
    )


def footer(options: Mapping[str, str], versions: Mapping[str, str]) -> Markup:
    """The last lines of a page: how it was asked for, and by what it was made."""
    asked = " ".join(f"{key}={value}" for key, value in options.items())
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"Options: {asked}" if asked else "", f"Made with {made}" if made else ""]
    return Markup("\n").join(
        Markup("<p>{}</p>").format(wording.text(line, FOOTER_LENGTH_MAX)) for line in lines if line
    )


def part(one: Plot | PageTable | Grid) -> Markup:
    """One part alone, as it stands in a page."""
    return _part(one, itertools.count(1))


def to_json(value: object) -> Markup:
    """JSON that can stand inside a script element whatever text is in it; a NaN in it is a mistake of ours."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escaped in _ESCAPES.items():
        plain = plain.replace(character, escaped)
    return Markup(plain)  # noqa: S704 -- escaped just now


@functools.cache
def _asset(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, as vl-convert carries them; bundling them takes a second, once."""
    import vl_convert  # noqa: PLC0415 -- 60 MB that only pages need

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    assert "</script" not in bundle.lower(), "the bundle would end its own script element"
    return bundle


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {sources}"


def _fact(fact: Headline) -> Markup:
    return Markup('<div class="fact{}"><dt>{}</dt><dd>{}<small>{}</small></dd></div>').format(
        " alarming" if fact.alarming else "", fact.label, fact.value, fact.note
    )


def _findings(findings: tuple[Finding, ...], titles: Mapping[str, str]) -> Markup:
    if not findings:
        return Markup()
    items = Markup("\n").join(
        Markup('<li{}>{} <a href="#{}" class="more">{}</a></li>').format(
            Markup(' class="alarming"') if finding.alarming else "",
            finding.sentence,
            finding.anchor,
            titles[finding.anchor],
        )
        for finding in findings
    )
    return Markup('<section id="findings"><h2>What stands out</h2><ul class="findings">{}</ul></section>').format(items)


def _section(section: Section, numbers: Iterator[int]) -> Markup:
    lead = Markup("\n").join(Markup("<p>{}</p>").format(sentence) for sentence in section.lead)
    notices = Markup("\n").join(
        Markup('<p class="notice" role="note">{}</p>').format(wording.text(notice, NOTICE_LENGTH_MAX))
        for notice in section.notices
    )
    parts = Markup("\n").join(_part(part, numbers) for part in section.parts)
    return Markup(
        '<section id="{0}" aria-labelledby="{0}-title">\n<h2 id="{0}-title">{1}</h2>\n{2}\n{3}\n{4}\n</section>'
    ).format(section.anchor, section.title, lead, notices, parts)


def _part(part: Plot | PageTable | Grid, numbers: Iterator[int]) -> Markup:
    if isinstance(part, Grid):
        return Markup('{}<div class="grid{}">{}</div>').format(
            _legend(part.legend),
            " narrow" if part.narrow else "",
            Markup("\n").join(_part(one, numbers) for one in part.parts),
        )
    return _plot(part, next(numbers)) if isinstance(part, Plot) else _table(part)


def _plot(plot: Plot, number: int) -> Markup:
    return Markup(
        '<figure class="plot" id="plot-{number}"><figcaption><h3>{title}</h3>{note}{legend}</figcaption>\n'
        '<div class="drawing" role="img" aria-label="{description}"></div>\n'
        '<script type="application/json">{spec}</script></figure>'
    ).format(
        number=number,
        title=plot.title,
        note=Markup('<p class="note">{}</p>').format(plot.note) if plot.note else "",
        legend=_legend(plot.legend),
        description=plot.description,
        spec=to_json(plot.spec),
    )


def _legend(entries: tuple[LegendEntry, ...]) -> Markup:
    return (
        Markup('<ul class="legend">{}</ul>').format(Markup().join(map(_legend_entry, entries))) if entries else Markup()
    )


def _legend_entry(entry: LegendEntry) -> Markup:
    return Markup('<li><i class="{}" style="color:{}"></i><bdi>{}</bdi></li>').format(
        entry.shape, entry.colour, wording.text(entry.label)
    )


def _table(table: PageTable) -> Markup:
    shown = table.frame.head(table.rows_max)
    head = Markup().join(
        Markup('<th scope="col"{}>{}</th>').format(_side(column), column.title) for column in table.columns
    )
    marks = shown[table.marked].tolist() if table.marked else [False] * len(shown)
    columns = [shown[column.key].tolist() for column in table.columns]
    rows = Markup("\n").join(
        Markup("<tr{}>{}</tr>").format(
            Markup(' class="marked"') if mark else "", Markup().join(map(_cell, table.columns, values))
        )
        for mark, values in zip(marks, zip(*columns, strict=True), strict=True)
    )
    return Markup(
        '<figure class="table"><figcaption>{}{}</figcaption>'
        '<div class="scroll" tabindex="0" role="region" aria-label="{}">'
        "<table><thead><tr>{}</tr></thead>\n<tbody>{}</tbody></table></div></figure>"
    ).format(table.caption, _rest(table), table.caption, head, rows)


def _rest(table: PageTable) -> Markup:
    total = len(table.frame)
    if total <= table.rows_max:
        return Markup()
    where = f"; all of them: {table.rest}" if table.rest else ""
    return Markup('<span class="rest">{} of {} rows{}</span>').format(
        wording.count(table.rows_max), wording.count(total), where
    )


def _cell(column: PageColumn, value: object) -> Markup:
    shown = column.shown(value)
    if not column.is_figure and len(shown) > LONG_CELL:
        return Markup('<td class="long">{}</td>').format(shown)
    return Markup("<td{}>{}</td>").format(_side(column), shown)


def _side(column: PageColumn) -> Markup:
    return Markup(' class="figure"') if column.is_figure else Markup()
