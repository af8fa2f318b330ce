"""Hostile texts and values from outside, drawn by Hypothesis."""

from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

__all__ = ["CANARY", "odd_text", "odd_values"]

CANARY = "canary7f3a"
"""Part of texts that only the database may hold; found anywhere else, it proves a leak."""

_ODD = [
    "",
    " ",
    "'",
    '"',
    "\\",
    "$$",
    "%s",
    "%(now_utc)s",
    "100%",
    "{}",
    "{0.__class__}",
    "'; drop table support.tickets; --",
    "\\'; select pg_sleep(60); --",
    '","Priority":"Critical","Number":"',
    '{"BreachKind": "Resolution"}',
    "null",
    "NULL",
    "\\N",
    "\\x00",
    "\n",
    "\r\n2026-11-30 ERROR all is lost",
    "\t\v\f",
    "\x01\x02\x1b[31m\x07",
    "\x7f\x80\x9f",
    "\u202e\u2066 ticket",
    "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "e\u0301",
    "\ufeff",
    "\u2028\u2029",
    "\ufffe\uffff\U0010ffff",
    "\uff19\u0663",
    "\u00a0\u200b",
    "<script>alert(1)</script>",
    "../../etc/passwd",
    "9" * 10_240,
    "\u0436" * 5_000,
]

# Texts that Postgres can store: no NUL, no half of a surrogate pair.
odd_text = st.one_of(
    st.sampled_from(_ODD),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80),
    st.sampled_from(_ODD),
)

odd_values: st.SearchStrategy[Any] = st.one_of(
    st.integers(-5, 1_010),
    st.integers(),
    st.sampled_from([10**30, -(2**63), 2**64]),
    # Made from its sign: Hypothesis prints sampled values with their strategy, and Python refuses to print this number.
    st.sampled_from([1, -1]).map(lambda sign: sign * 10**5_000),
    st.floats(),
    st.booleans(),
    st.none(),
    odd_text,
    st.text(max_size=20),
    st.sampled_from(["500", "5e2", "0x10", "\uff11", "\ud800", "{0a11ce00-0000-4000-8000-000000000001}"]),
    st.uuids(),
    st.uuids().map(str),
    st.binary(max_size=20),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.just(Decimal("500")),
)
