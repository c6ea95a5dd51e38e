"""The files of a release that are written by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools.release import notes
from ts_stateful.version import __version__


def test_the_citation_is_valid(repository: Path) -> None:
    """It agrees with the format's schema, and names this version."""
    path = repository / "CITATION.cff"
    schema = "vendor.citation-file-format"
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert yaml.safe_load(path.read_text())["version"] == __version__


def test_the_notes_are_the_section_of_the_version(repository: Path) -> None:
    """The changelog has one for this version; those of others are not in it."""
    changelog = "# Changelog\n\n## 0.2.0 (2027-01-02)\n\n### Added\n\n- New.\n\n## 0.1.0 (2026-01-02)\n\n- Old.\n"
    assert notes(changelog, "0.2.0") == ("2027-01-02", "### Added\n\n- New.\n")
    assert notes(changelog, "0.1.0") == ("2026-01-02", "- Old.\n")
    assert notes((repository / "CHANGELOG.md").read_text(), __version__)[1]
    with pytest.raises(ValueError, match=r"0\.3\.0"):
        notes(changelog, "0.3.0")
