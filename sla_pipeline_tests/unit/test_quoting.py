"""Untrusted values in messages: one line, bounded, no markup."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sla_pipeline.quoting import in_markdown, named, quoted


@pytest.mark.parametrize("text", ["TCK-1", "A[/b]", "Билет-17", "X" * 100])
def test_a_short_printable_name_is_unchanged(text: str) -> None:
    assert named(text) == text


@pytest.mark.parametrize(
    "text", ["\x1b[2J", "A\nB", "\u009b", "\u202e", "\u2028", "\u200b", "", " ", "X" * 101, "X" * 10_000]
)
def test_any_other_name_is_quoted_and_bounded(text: str) -> None:
    assert named(text) == quoted(text)
    assert named(text).isprintable()
    assert len(named(text)) <= 103


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60) | st.text(alphabet="|[]()<>`*_~\\!#&:;/.-+ ab", max_size=40))
def test_a_name_is_never_markdown(text: str) -> None:
    """A reader sees the name in its table cell, and the table keeps its columns."""
    shown = named(f"x{text}x")
    html = (
        MarkdownIt("commonmark").enable("table").render(f"| a | b |\n| --- | --- |\n| {in_markdown(shown)} | end |\n")
    )
    (cell, end) = re.findall(r"<td>(.*?)</td>", html)
    assert end == "end"
    assert not re.search(r"<[a-z/]", cell)
    for sign, entity in (("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("&", "&amp;")):
        cell = cell.replace(entity, sign)
    assert cell == shown
