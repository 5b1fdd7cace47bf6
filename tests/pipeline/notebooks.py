"""Runs the cells of a notebook in order, as Jupyter does, and stores their output in it: `make notebook`.

python -m tests.pipeline.notebooks examples/notebooks/report.ipynb
"""

import ast
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def code_cells(notebook: Json) -> list[Json]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run_cells(notebook: Json, names: Json) -> Iterator[tuple[Json, str, object]]:
    """Runs the code cells with shared names. Yields each cell, its printed text, and its value.

    The value of a cell is that of its last line, if that is an expression.
    """
    for number, cell in enumerate(code_cells(notebook), 1):
        body = ast.parse("".join(cell["source"])).body
        last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None  # type: ignore[attr-defined]
        place = f"cell {number}"
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(body, []), place, "exec"), names)
            value = eval(compile(last, place, "eval"), names) if last is not None else None
        yield cell, printed.getvalue(), value


def outputs(printed: str, value: object) -> list[Json]:
    """The output below a cell: text, and charts as pictures."""
    import vl_convert

    shown: list[Json] = []
    if printed:
        shown.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if hasattr(value, "to_dict"):
        svg = vl_convert.vegalite_to_svg(value.to_dict())
        data = {"image/svg+xml": svg.splitlines(keepends=True)}
        shown.append({"output_type": "display_data", "data": data, "metadata": {}})
    return shown


def main(path: Path) -> None:
    """Rewrites a notebook with the current output of its cells."""
    notebook: Json = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, printed, value) in enumerate(run_cells(notebook, {"__name__": "__main__"}), 1):
        cell["execution_count"] = number
        cell["outputs"] = outputs(printed, value)
        print(f"cell {number}: {len(printed)} characters, {type(value).__name__}")
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
