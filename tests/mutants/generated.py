"""Mutants drawn from the engine's syntax trees: every operator, constant and statement that can be changed, by a seed.

Nobody has looked at these, so some are equivalent; they show where to look, and the list by hand is what counts.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import Mutant

ENGINE = Path(__file__).resolve().parent.parent.parent / "purgatory" / "engine"
NOUNS = {"__init__", "batches", "codes", "completions", "errors", "views", "limits"}
"""Modules that hold names and values and decide nothing."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}


class Text:
    """A module's text, addressed by syntax node."""

    def __init__(self, module: str, text: str) -> None:
        self.module = module
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def replaced(self, node: ast.expr | ast.stmt, new: str) -> Mutant:
        """The mutant with `new` in the node's place; it replaces the whole text, so that it is unambiguous."""
        begin, end = self.span(node)
        old = self.text[begin:end]
        name = f"line {node.lineno}: {' '.join(old.split())[:36]} -> {' '.join(new.split())[:36]}"
        return Mutant(name, self.module, self.text, self.text[:begin] + new + self.text[end:])


def changes(text: Text, node: ast.AST) -> Iterator[Mutant]:
    """The mutants of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        _, other = COMPARISONS[type(node.ops[0])]
        yield text.replaced(node, f"{ast.unparse(node.left)} {other} {ast.unparse(node.comparators[0])}")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = "-" if isinstance(node.op, ast.Add) else "+"
        yield text.replaced(node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.right)})")
    elif isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        yield text.replaced(node, "(" + other.join(f"({ast.unparse(value)})" for value in node.values) + ")")
        yield text.replaced(node, "(" + ast.unparse(node.values[0]) + ")")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield text.replaced(node, ast.unparse(node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield text.replaced(node, str(not node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield text.replaced(node, str(node.value + 1))
    elif isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield text.replaced(node, "pass")
    elif isinstance(node, ast.If) and not node.orelse:
        yield text.replaced(node.test, "False")


def decides(node: ast.AST) -> bool:
    """False for what holds messages, docstrings, types and asserts: changing them breaks nothing."""
    return not isinstance(node, ast.Assert | ast.JoinedStr | ast.arguments | ast.Import | ast.ImportFrom)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one, but those that decide nothing."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "Fault":
            continue
        if decides(child):
            yield child
            yield from walk(child)


def generated(count: int, seed: int) -> list[Mutant]:
    """`count` mutants, the same ones for the same seed and text."""
    found: list[Mutant] = []
    for path in sorted(ENGINE.rglob("*.py")):
        if path.stem in NOUNS:
            continue
        source = path.read_text(encoding="utf-8")
        text = Text(str(path.relative_to(ENGINE).with_suffix("")), source)
        for function in ast.walk(ast.parse(source)):
            if isinstance(function, ast.FunctionDef):
                found += [mutant for node in walk(function) for mutant in changes(text, node)]
    return random.Random(seed).sample(found, min(count, len(found)))
