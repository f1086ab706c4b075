"""Assertions on the facts of an error, so that its sentence can be improved without a change of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError, HoldfastWarning


def says(sentence: object, *facts: object) -> bool:
    """Return whether names, numbers and flags all occur in ``sentence``, in any order."""
    return all(str(fact) in str(sentence) for fact in facts)


@contextmanager
def refused(
    kind: type[BaseException] = HoldfastError, *facts: object, **fields: Any
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect an error of this ``kind`` that names the ``facts`` and whose ``fields`` have these values."""
    with pytest.raises(kind) as caught:
        yield caught
    assert says(caught.value, *facts), f"{facts} are not all in: {caught.value}"
    found = {name: getattr(caught.value, name) for name in fields}
    assert found == fields


@contextmanager
def warned(kind: type[Warning] = HoldfastWarning, *facts: object) -> Iterator[pytest.WarningsRecorder]:
    """Expect a warning of this ``kind`` that names the ``facts``."""
    with pytest.warns(kind) as caught:
        yield caught
    assert any(issubclass(each.category, kind) and says(each.message, *facts) for each in caught), (
        f"no warning names {facts}: {[str(each.message) for each in caught]}"
    )
