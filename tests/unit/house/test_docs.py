"""The documents agree with the code, and their site builds without a warning."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tools import config_reference, docs_links
from ts_stateful.cli.parser import build_parser
from ts_stateful.cli.variables import VARIABLES
from ts_stateful.config.schema import FrontendConfig, HandlerConfig, StateConfig
from ts_stateful.protocol.stats import Stats

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WRITTEN = [*PAGES, *(ROOT / n for n in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]

LINKING = [
    *WRITTEN,
    *sorted(ROOT.glob("deploy/**/README.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]


def _ids(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_the_tables_of_the_configuration_are_up_to_date() -> None:
    """`make docs` writes them from the schema; the page is committed."""
    text = config_reference.PAGE.read_text(encoding="utf-8")
    assert config_reference.page(text) == text, "run `make docs` and commit the page"


def test_every_configuration_key_is_in_the_reference_with_a_meaning() -> None:
    """Also keys that a struct inherits."""
    keys = {key.name: key for key in config_reference.all_keys()}
    assert all(key.meaning.endswith(".") and key.values for key in keys.values())
    for kind, prefix in (
        (FrontendConfig, ""),
        (HandlerConfig, "handler."),
        (StateConfig, "handler."),
    ):
        for name in set(kind.__struct_encode_fields__) - {
            "implicitSessions",
            "limits",
            "media",
            "quotas",
            "store",
        }:
            assert prefix + name in keys
    assert {"handler.media.maxBytes", "handler.store.url"} <= keys.keys()
    assert keys["handler.engines"].values == "`auto` or integer from 1"
    assert keys["handler.streamIntervalSec"].default == "`0.04`"
    assert keys["batchSize"].default == "`64`; TorchServe's own: `1`"
    assert keys["sequenceTimeoutMSec"].default == "`0`"


def test_every_variable_is_in_the_reference() -> None:
    """But those that processes of the package set for each other."""
    text = config_reference.PAGE.read_text(encoding="utf-8")
    internal = {"TS_STATEFUL_BELLS", "TS_STATEFUL_ENTRYPOINT", "TS_STATEFUL_STATE_DIR"}
    assert set(re.findall(r"TS_STATEFUL_[A-Z_]+[A-Z]", text)) == VARIABLES - internal


def test_every_gauge_is_in_the_list_of_metrics() -> None:
    """And none that there is not."""
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    gauges = {"Stateful" + name.title().replace("_", "") for name in Stats.__struct_fields__}
    assert set(re.findall(r"`(Stateful\w+)`", text)) == gauges


@pytest.mark.parametrize("page", WRITTEN, ids=_ids(WRITTEN))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    """Paths stand below the package, below tests, or below the repository."""
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|h|cpp|sh|md|yaml))`", page.read_text("utf-8"))
    places = (ROOT, ROOT / "handlers", ROOT / "handlers" / "ts_stateful", ROOT / "tests")
    for name in set(named):
        made = name.startswith(("build/", "dist/")) or "<" in name
        assert made or any((place / name).is_file() for place in places), name


@pytest.mark.parametrize("page", LINKING, ids=[str(p.relative_to(ROOT)) for p in LINKING])
def test_links_between_files_lead_somewhere(page: Path) -> None:
    """Outside of the site too: to a file, and to a heading of it."""
    for path, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text("utf-8")
    ):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=_ids(PAGES))
def test_every_page_has_an_example(page: Path) -> None:
    """A block of code, a command, or a document."""
    assert "\n```" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", WRITTEN, ids=_ids(WRITTEN))
def test_blocks_parse(page: Path) -> None:
    """Python, JSON, YAML and shell are well-formed."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "python":
            compile(block, str(page), "exec")
        elif language == "yaml":
            yaml.safe_load(block)
        elif language == "json":
            decoder, rest = json.JSONDecoder(), block.strip()
            while rest:
                rest = rest[decoder.raw_decode(rest)[1] :].lstrip()
        elif language == "sh":
            subprocess.run(["bash", "-n", "-c", block], check=True)


def test_links_to_files_outside_lead_to_the_repository(caplog: pytest.LogCaptureFixture) -> None:
    """Anchors stay; a missing file is a warning, which fails the build."""
    page = type("Page", (), {"file": type("File", (), {"src_path": "page.md"})})
    config = {"repo_url": "https://example.com/owner/name/"}
    text = "[a](../README.md#limits) [b](../deploy/haproxy) [c](start.md) [d](../missing.md)"
    made = docs_links.on_page_markdown(text, page=page, config=config, files=None)
    base = "https://example.com/owner/name"
    assert made == (
        f"[a]({base}/blob/main/README.md#limits) [b]({base}/tree/main/deploy/haproxy) "
        f"[c](start.md) [d]({base}/blob/main/missing.md)"
    )
    assert [record.getMessage() for record in caplog.records] == [
        "page.md links to ../missing.md, which is missing"
    ]


def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: a broken link, a missing anchor, or a page outside the navigation fails."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "configuration" / "index.html").is_file()
    assert 'class="mermaid"' in (tmp_path / "recovery" / "index.html").read_text("utf-8")


def test_the_commands_of_the_runbook_parse() -> None:
    """Each `ts-stateful` command of its examples has arguments that the parser takes."""
    text = (ROOT / "docs" / "runbook.md").read_text()
    commands = re.findall(r"^\$ ts-stateful ([^#\n]+)", text, re.MULTILINE)
    assert len(commands) > 20
    for command in commands:
        if command.strip() != "--version":
            build_parser().parse_args(shlex.split(command))
