"""The public names of the Python packages and their signatures, as python_api.txt has them.

After a change: `python -m tests.compatibility.test_python_api` writes the file. Its diff is what users will notice, so
docs/compatibility.md decides whether the next release may make it.
"""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import griffe
import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SNAPSHOT: Final = Path(__file__).with_name("python_api.txt")
PUBLIC: Final = (
    "purgatory.embedded",
    "purgatory.testing",
    "purgatory.timer",
    "purgatory_client",
    "purgatory_client.batches",
    "purgatory_client.errors",
    "purgatory_client.events",
    "purgatory_client.marks",
    "purgatory_client.middleware",
    "purgatory_client.middleware.asgi",
    "purgatory_client.middleware.wsgi",
    "purgatory_client.prefix",
    "purgatory_client.results",
    "purgatory_client.sources.log_positions",
    "purgatory_client.sources.position_tokens",
    "purgatory_client.sources.source_link",
    "purgatory_client.sources.source_names",
    "purgatory_client.terms",
    "purgatory_client.views",
    "purgatory_client.waits",
    "purgatory_connectors",
    "purgatory_pipeline.datasource",
    "purgatory_pipeline.listener",
    "purgatory_pipeline.notebook",
)
"""Modules whose names are promised: those in `__all__`, or else those without an underscore."""
INTERNAL: Final = frozenset(
    {"COLUMNS", "FETCH_COLUMNS", "ITEM_COLUMNS", "ITEM_DEFAULTS", "OPERATION_COLUMNS", "FORMS", "STALE_MAX"}
    | {"STALE_PARTITIONS_MAX", "Entry", "OpenEnum", "already_satisfied", "checked_condition", "checked_terms"}
    | {"partition_columns", "positions_of", "value_text"}
)
"""Names of these modules that only other modules of ours use."""
OPAQUE: Final = ("purgatory_client.batches.WaitBatch", "purgatory_client.waits.Wait")
"""Created by functions and passed to a client; their contents are private."""
RESERVED: Final = ("purgatory_", "timer_")
"""Attributes of an embedded operation or a task that are not the user's."""
REMEDY: Final = (
    "the public Python API has changed. If docs/compatibility.md allows that in the next release, say it in "
    "CHANGELOG.md and run `python -m tests.compatibility.test_python_api`"
)


def of_class(found: griffe.Class) -> Iterator[str]:
    """Lines for a class: its bases, and its public members, including those inherited from the project's classes."""
    bases = ", ".join(str(base) for base in found.bases)
    yield f"class {found.name}({bases})" if bases else f"class {found.name}"
    if found.path in OPAQUE:
        return
    for name, member in sorted(found.all_members.items()):
        is_special = name.startswith("__") and isinstance(target(member), griffe.Function)
        if (name.startswith(("_", *RESERVED)) and not is_special) or wire_types(target(member)):
            continue
        yield from (f"    {line}" for line in lines(name, member))


def target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def lines(name: str, member: griffe.Object | griffe.Alias) -> Iterator[str]:
    found = target(member)
    if isinstance(found, griffe.Class):
        yield from of_class(found)
    elif isinstance(found, griffe.Function):
        decorators = "".join(f"@{one.value} " for one in found.decorators)
        awaited = "async " if "async" in found.labels else ""
        yield f"{decorators}{awaited}def {found.signature(name=name)}"
    elif isinstance(found, griffe.Attribute):
        kind = "property " if "property" in found.labels else ""
        annotation = f": {found.annotation}" if found.annotation is not None else ""
        # A constant, the member of an enumeration, or a method by another name. Not values assigned by a constructor,
        # or computed for a constant that has a type.
        is_computed = bool(annotation) and isinstance(found.value, griffe.ExprCall)
        is_constant = "module-attribute" in found.labels and not is_computed
        has_value = is_constant or ("class-attribute" in found.labels and not annotation)
        yield f"{kind}{name}{annotation}" + (f" = {found.value}" if has_value else "")


def is_public(module: griffe.Module, name: str, member: griffe.Object | griffe.Alias) -> bool:
    """Whether a name of a module is promised."""
    if module.exports is not None:
        return name in module.exports
    is_own = not name.startswith("_") and name not in INTERNAL and not member.is_alias and not member.is_module
    return is_own and not wire_types(target(member))


def wire_types(found: griffe.Object) -> list[str]:
    """The messages and stubs of the wire that a function takes, or that an attribute holds."""
    annotations = [found.annotation] if isinstance(found, griffe.Attribute) else []
    if isinstance(found, griffe.Function):
        annotations = [parameter.annotation for parameter in found.parameters]
    names = [one.canonical_path for annotation in annotations for one in names_in(annotation)]
    return [name for name in names if "_pb2" in name or name.startswith("purgatory_client.wire.")]


def names_in(annotation: object) -> list[griffe.ExprName]:
    if isinstance(annotation, griffe.ExprName):
        return [annotation]
    if isinstance(annotation, griffe.Expr):
        return [one for one in annotation.iterate(flat=True) if isinstance(one, griffe.ExprName)]
    return []


def snapshot() -> str:
    """The public API as text. It is read from the sources: nothing is imported, so Spark may be missing."""
    loader = griffe.GriffeLoader(
        search_paths=[ROOT, ROOT / "client", ROOT / "connectors", ROOT / "pipeline"], allow_inspection=False
    )
    for package in ("purgatory", "purgatory_client", "purgatory_connectors", "purgatory_pipeline"):
        loader.load(package)
    loader.resolve_aliases(external=False)
    written: list[str] = []
    for path in PUBLIC:
        module = loader.modules_collection[path]
        written.append(f"\n# {path}")
        for name, member in sorted(module.members.items()):
            if is_public(module, name, member) and not target(member).is_module:
                home = target(member).module.path
                written += [f"{name}: see {home}"] if home != path and home in PUBLIC else lines(name, member)
    return "\n".join(written).lstrip() + "\n"


@pytest.mark.slow  # parses every module
def test_public_python_api_is_that_of_the_snapshot() -> None:
    expected, now = SNAPSHOT.read_text("utf-8"), snapshot()
    diff = "\n".join(difflib.unified_diff(expected.splitlines(), now.splitlines(), "promised", "now", lineterm="", n=0))
    assert now == expected, f"{REMEDY}:\n{diff}"


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), "utf-8")
