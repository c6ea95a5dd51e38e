"""Replies as HTML. Nothing that a model writes becomes a tag, a script or a request to another host."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

__all__ = ["reply_html"]


def _link_open(
    self: RendererHTML, tokens: list[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Show the address: a model may name one and mean another. No opened page learns of this one."""
    token = tokens[index]
    token.attrSet("target", "_blank")
    token.attrSet("rel", "noopener noreferrer")
    token.attrSet("title", str(token.attrGet("href")))
    return self.renderToken(tokens, index, options, env)


def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table")
    markdown.disable("image")  # the browser would fetch it
    markdown.add_render_rule("link_open", _link_open)
    return markdown


_MARKDOWN = _markdown()


def reply_html(text: str) -> str:
    """Render Markdown; HTML in it is shown as text."""
    return str(_MARKDOWN.render(text))
