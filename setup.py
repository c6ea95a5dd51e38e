"""The package's page: the README, whose links lead to the release's files."""

import re
from pathlib import Path

from setuptools import setup

_REPOSITORY = "torchserve-stateful/torchserve-stateful"
_LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?://|#)([^)]+)\)")


def page(readme: str, version: str) -> str:
    """Return the README with absolute links, to pages and to images."""

    def absolute(link: re.Match[str]) -> str:
        text, path = link.groups()
        base = (
            f"https://raw.githubusercontent.com/{_REPOSITORY}/v{version}"
            if text.startswith("!")
            else f"https://github.com/{_REPOSITORY}/blob/v{version}"
        )
        return f"{text}({base}/{path})"

    return _LINK.sub(absolute, readme)


def _version() -> str:
    text = Path("handlers/ts_stateful/version.py").read_text(encoding="utf-8")
    return text.rpartition('__version__ = "')[2].split('"')[0]


if __name__ == "__main__":
    setup(
        long_description=page(Path("README.md").read_text(encoding="utf-8"), _version()),
        long_description_content_type="text/markdown",
    )
