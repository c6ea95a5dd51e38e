"""A hook of mkdocs that turns links to files outside docs/ into links to the repository."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)")
_log = logging.getLogger("mkdocs.hooks.docs_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page; warn of a missing file, which fails a strict build."""
    del files

    def rewritten(found: re.Match[str]) -> str:
        target = ROOT / found[1]
        if not target.exists():
            _log.warning("%s links to ../%s, which is missing", page.file.src_path, found[1])
        kind = "tree" if target.is_dir() else "blob"
        return f"]({config['repo_url'].rstrip('/')}/{kind}/main/{found[1]}"

    return _LINK.sub(rewritten, markdown)
