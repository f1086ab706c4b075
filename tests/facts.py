"""Assertions on the facts of an error, so that its sentence can be improved without a change of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError


def says(sentence: object, *facts: object) -> bool:
    """Return whether names, numbers and flags all occur in ``sentence``, in any order."""
    return all(str(fact) in str(sentence) for fact in facts)


@contextmanager
def refused(kind: type[HoldfastError] = HoldfastError, *facts: object, **fields: Any) -> Iterator[None]:
    """Expect an error of this ``kind`` that names the ``facts`` and whose ``fields`` have these values."""
    with pytest.raises(kind) as caught:
        yield
    assert says(caught.value, *facts), f"{facts} are not all in: {caught.value}"
    found = {name: getattr(caught.value, name) for name in fields}
    assert found == fields
