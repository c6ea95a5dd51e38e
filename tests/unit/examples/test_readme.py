"""The table of the examples."""

from __future__ import annotations

from pathlib import Path


def test_every_example_is_in_the_table(repository: Path) -> None:
    """Every program, notebook and model is, by a link."""
    examples = repository / "examples"
    table = (examples / "README.md").read_text()
    for path in [*examples.glob("*.py"), *examples.glob("*.ipynb"), *examples.glob("*/README.md")]:
        assert f"]({path.relative_to(examples)})" in table
