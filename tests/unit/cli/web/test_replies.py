"""Replies as HTML."""

from __future__ import annotations

import pytest

from ts_stateful.cli.web.replies import reply_html


def test_markdown_is_rendered() -> None:
    """Lists, code, tables and line ends are shown as such."""
    html = reply_html("- a\n- `b`\n\nc\nd\n\n| x | y |\n|---|---|\n| 1 | 2 |\n")
    for tag in ("<li>a</li>", "<code>b</code>", "c<br", "<td>2</td>"):
        assert tag in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![a](http://example.com/a.png)",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "```<script>\n<img src=x>\n```",
        '[a](http://example.com "\\"><script>")',
    ],
)
def test_a_model_writes_no_tags(text: str) -> None:
    """HTML is text, pictures are not fetched, and links run no scripts."""
    html = reply_html(text)
    for tag in ("<script", "<img", 'href="javascript', 'href="data', "<a onerror"):
        assert tag not in html


def test_a_link_opens_apart() -> None:
    """A link shows its address, and its page gets no hold of this one."""
    html = reply_html("[a](http://example.com/)")
    assert 'title="http://example.com/"' in html
    assert 'rel="noopener noreferrer"' in html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        (r"\(x_1 \{a\} * b * c\)", r"<p><code>\(x_1 \{a\} * b * c\)</code></p>"),
        (r"$\{a\}$ is $$a \\ b$$.", r"<p><code>$\{a\}$</code> is <code>$$a \\ b$$</code>.</p>"),
        (
            "so\n\\[\na \\\\\n+ b\n\\]\n",
            "<p>so</p>\n<pre><code>\\[\na \\\\\n+ b\n\\]\n</code></pre>",
        ),
        (
            "> $$\n> a\n> $$",
            '<blockquote dir="auto">\n<pre><code>$$\na\n$$\n</code></pre>\n</blockquote>',
        ),
        ("$5 and $6, $5-$6, \\$x", "<p>$5 and $6, $5-$6, $x</p>"),
        ("$5 of `a$`", "<p>$5 of <code>a$</code></p>"),
        (r"`\(` and \(", r"<p><code>\(</code> and (</p>"),
    ],
)
def test_formulas_are_shown_as_written(text: str, html: str) -> None:
    """Markdown would take their backslashes for its own, and their marks for lists and emphasis."""
    assert reply_html(text).strip() == html


def test_text_from_right_to_left_has_its_bullets_there() -> None:
    """So does a deep list, whose text is shown."""
    html = reply_html("- \u05d0\n\n> \u05d0\n\n| \u05d0 |\n|---|\n" + "- " * 30 + "deep")
    for tag in ("<ul dir=", "<blockquote dir=", "<table dir=", "deep"):
        assert tag in html
