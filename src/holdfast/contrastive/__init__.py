"""Certified robustness against being taken for another image (Wang and Liu 2022, RVCL)."""

from __future__ import annotations

from holdfast.bounds.alpha import Alpha
from holdfast.bounds.branch import Branch
from holdfast.bounds.exact import Exact
from holdfast.bounds.method import Crown, Interval, Method
from holdfast.bounds.semidefinite import Semidefinite
from holdfast.spelling import READERS, read

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Interval, Crown, Alpha, Branch, Exact, Semidefinite)
}


def read_method(text: str) -> Method:
    """Return the way to bound that ``text`` spells."""
    return read(text, METHODS, "method")


READERS["Method"] = read_method
