"""A runner of notebooks without Jupyter: the cells in order, in one namespace, in the notebook's folder.

`python -m tests.support.notebooks examples/notebook.ipynb` writes the outputs into the notebook.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import nbformat

__all__ = ["execute"]


def execute(path: Path, target: Path) -> None:
    """Write a copy of a notebook with the outputs of its cells; the first error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, start=1):
        cell.execution_count = number
        cell.outputs = _outputs(cell.source, number, namespace)
    nbformat.validate(notebook)
    nbformat.write(notebook, target)


def _outputs(source: str, number: int, namespace: dict[str, Any]) -> list[Any]:
    module = ast.parse(source)
    last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(module, f"cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[Any] = []
    if printed.getvalue():
        outputs.append(nbformat.v4.new_output("stream", name="stdout", text=printed.getvalue()))
    if shown is not None:
        data = {"text/plain": repr(shown)}
        if hasattr(shown, "_repr_png_"):
            png = base64.b64encode(shown._repr_png_()).decode()
            data = {"text/plain": f"<{type(shown).__name__}>", "image/png": png}
        outputs.append(nbformat.v4.new_output("execute_result", data=data, execution_count=number))
    return outputs


def main() -> None:
    """Execute the notebook of the first argument into that of the second, or into itself."""
    path, target = Path(sys.argv[1]).resolve(), Path(sys.argv[-1]).resolve()
    os.chdir(path.parent)
    execute(path, target)


if __name__ == "__main__":
    main()
