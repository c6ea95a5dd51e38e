"""Replies as HTML. Nothing that a model writes becomes a tag, a script or a request to another host."""

from __future__ import annotations

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from ts_stateful.cli.chat.reply_parser import reply_parser

__all__ = ["reply_html"]

_DIRECTED = {"ul", "ol", "blockquote", "table"}


def _link_open(
    self: RendererHTML, tokens: list[Token], index: int, options: OptionsDict, env: EnvType
) -> str:
    """Show the address: a model may name one and mean another. No opened page learns of this one."""
    token = tokens[index]
    token.attrSet("target", "_blank")
    token.attrSet("rel", "noopener noreferrer")
    token.attrSet("title", str(token.attrGet("href")))
    return self.renderToken(tokens, index, options, env)


_MARKDOWN = reply_parser()
_MARKDOWN.options["breaks"] = True
_MARKDOWN.add_render_rule("link_open", _link_open)


def reply_html(text: str) -> str:
    """Render Markdown; HTML in it is shown as text, and each list, quotation and table has the direction of its text."""
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        if token.tag in _DIRECTED and token.nesting == 1:
            token.attrSet("dir", "auto")
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))
