"""Which transforms among the settings of an evaluation apply to the inputs of an encoder, as the transforms declare."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from holdfast.core.encoder import Encoder
from holdfast.core.records import Conditions
from holdfast.core.settings import fields_of
from holdfast.measure.evaluation import Evaluation, with_settings
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import edits_named

Change = Transform | str
"""A transform, or the name of a family."""


def inapplicable(evaluation: Evaluation, encoder: Encoder) -> dict[Change, str]:
    """Transforms of an evaluation that do not apply to an encoder, with what each needs.

    Args:
        evaluation: Evaluation with transforms.
        encoder: Encoder to measure.
    """
    return _unmet(evaluation, _chosen(evaluation), encoder)


def restricted(evaluation: Evaluation, excluded: Collection[Change]) -> Evaluation | None:
    """Evaluation without some transforms; None if it then measures nothing.

    Args:
        evaluation: Evaluation with transforms.
        excluded: Transforms to leave out.
    """
    rest = tuple(change for change in _chosen(evaluation) if change not in excluded)
    if not rest and evaluation.needs_changes:
        return None
    return with_settings(evaluation, **{evaluation.changes: rest})


def changes_by_default(evaluation: Evaluation) -> bool:
    """True if the transforms of ``evaluation`` are the defaults, not chosen by the user."""
    return _chosen(evaluation) == _default(evaluation)


def without(evaluation: Evaluation, encoder: Encoder) -> Conditions:
    """Condition of a mean that lacks default transforms which do not apply; usually empty.

    A mean over fewer transforms is another number, which is never compared with that over all of them.

    Args:
        evaluation: Evaluation with transforms.
        encoder: Encoder to measure.
    """
    lacking = _unmet(evaluation, _default(evaluation), encoder)
    rest = tuple(change for change in _default(evaluation) if change not in lacking)
    return {"without": ", ".join(map(str, lacking))} if lacking and _chosen(evaluation) == rest else {}


def _unmet(evaluation: Evaluation, changes: Iterable[Change], encoder: Encoder) -> dict[Change, str]:
    domain, needs = encoder.domain, dict[Change, str]()
    for change in () if encoder.codes_only else changes:
        transform = change if isinstance(change, Transform) else edits_named(evaluation.name, (change,))[0]
        if needed := transform.needs(domain.shape):
            needs[change] = needed
        elif (domain.low, domain.high) != (0, 1):
            needs[change] = "pixels in [0, 1] (put the scaling into the encoder)"
    return needs


def _chosen(evaluation: Evaluation) -> tuple[Change, ...]:
    return _listed(getattr(evaluation, evaluation.changes)) if evaluation.changes else ()


def _default(evaluation: Evaluation) -> tuple[Change, ...]:
    return _listed(fields_of(type(evaluation))[evaluation.changes].default) if evaluation.changes else ()


def _listed(value: Any) -> tuple[Change, ...]:
    return value if isinstance(value, tuple) else (value,)
