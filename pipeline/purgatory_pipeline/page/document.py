"""Renders the parts of a page as one HTML file that needs no network and no other file.

All HTML is in `templates/`, rendered by Jinja2 with autoescape: text that is not `Markup` is escaped. The JSON of a
plot is embedded in a script element, with `<`, `>` and `&` written as JSON escapes. A content security policy allows
only the page's two scripts, by their hashes, and forbids loading anything, so text that escaped this protection could
still do nothing.
"""

import base64
import functools
import hashlib
import itertools
import json
from importlib import resources
from typing import Final

import jinja2
from markupsafe import Markup

from purgatory_pipeline.page import wording
from purgatory_pipeline.page.parts import Grid, Page, Plot

LONG_CELL: Final = 26
"""Texts in tables may wrap if they are longer than this; shorter ones stay on one line."""
NOTICE_LENGTH_MAX: Final = 600
FOOTER_LENGTH_MAX: Final = 400
_JSON_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render(page: Page) -> str:
    scripts, program = libraries(), _asset("page.js")
    return (
        _templates()
        .get_template("page.html.jinja")
        .render(
            page=page,
            numbers=itertools.count(1),
            policy=_policy(scripts, program),
            style=_asset("page.css"),
            libraries=scripts,
            program=program,
        )
    )


def to_json(value: object) -> Markup:
    """JSON that is safe inside a script element, whatever text it contains. Raises `ValueError` for a NaN."""
    plain = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character, escaped in _JSON_ESCAPES.items():
        plain = plain.replace(character, escaped)
    return Markup(plain)  # noqa: S704 -- escaped just now


@functools.cache
def libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, bundled by vl-convert. Takes a second, once per process."""
    import vl_convert  # noqa: PLC0415 -- 60 MB that only pages need

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    assert "</script" not in bundle.lower(), "the bundle would end its own script element"
    return bundle


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"json": to_json, "shown": wording.text, "count": wording.count}
    environment.tests |= {"grid": lambda part: isinstance(part, Grid), "plot": lambda part: isinstance(part, Plot)}
    limits = {"LONG_CELL": LONG_CELL, "NOTICE_LENGTH_MAX": NOTICE_LENGTH_MAX, "FOOTER_LENGTH_MAX": FOOTER_LENGTH_MAX}
    environment.globals |= {"next": next, **limits}
    return environment


@functools.cache
def _asset(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {sources}"
