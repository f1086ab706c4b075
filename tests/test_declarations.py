"""A law of what is declared: what a fit learns depends on labels and groups only if it says so, for keys hold them then."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.core.images import Images
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.geometry.classes import Margins
from holdfast.geometry.evaluations.geometry import SpaceGeometry
from holdfast.geometry.sphere import Tags
from holdfast.measure.evaluation import fits_of
from holdfast.measure.population import Fit, Population
from tests.samples import builtin, classes
from tests.samples import digits as plain
from tests.test_laws import EVALUATIONS, small


def images(count: int, start: int, labels: bool, groups: bool) -> Images:
    """Digits with two classes and groups of two images each, or with others of these."""
    parity, size = classes(count, start) % 2, 5 if groups else 2
    patients = [f"patient {row // size}" for row in range(count)]
    usual = plain(count, start)
    return Images(
        usual.pixels(range(count)), usual.ids, parity.flip(0) if labels else parity, "digits", groups=patients
    )


def learned(fit: Fit[Any], count: int, labels: bool = False, groups: bool = False) -> Observed:
    """What ``fit`` learns of so many images and a bank, with their usual ``labels`` and ``groups`` or others."""
    bank = Population(builtin(), images(40, 1300, labels, groups), RunSettings())
    return fit.learn(Population(builtin(), images(count, 1200, labels, groups), RunSettings(), bank=bank))


def declares(fit: Fit[Any], count: int = 14) -> bool:
    """Whether what ``fit`` does not say it looks at changes nothing of what it learns."""
    usual = learned(fit, count)
    changed = learned(fit, count, labels=not fit.uses_labels, groups=not fit.uses_groups)
    return all(torch.equal(changed[name].nan_to_num(9), values.nan_to_num(9)) for name, values in usual.items())


SHORT: dict[str, Any] = {"steps": 5, "restarts": 1}


def short(fit: Fit[Any]) -> Fit[Any]:
    """The fit with fewer steps, if it takes some."""
    return replace(
        fit, **{name: value for name, value in SHORT.items() if name in {field.name for field in fields(fit)}}
    )


FITS = {type(fit): short(fit) for evaluation in EVALUATIONS for fit in fits_of(evaluation)}


@pytest.mark.parametrize("fit", FITS.values(), ids=lambda fit: type(fit).__name__)
def test_fits_say_what_they_look_at(fit: Fit[Any]) -> None:
    assert declares(fit)


def test_fits_that_compare_tags_say_what_they_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that no suite learns, since it knows no tags; and here the law is seen to be awake."""
    (tmp_path / "tags.csv").write_text("\n".join(f"{name},scanner {k % 3}" for k, name in enumerate(plain(60).ids)))
    geometry = small(SpaceGeometry)
    assert isinstance(geometry, SpaceGeometry)
    fits = fits_of(replace(geometry, tags=Tags.read(str(tmp_path / "tags.csv"))))
    (margins,) = [fit for fit in fits if isinstance(fit, Margins)]
    for fit in fits:
        assert declares(fit, 60)
    for flag in ("uses_labels", "uses_groups"):
        with monkeypatch.context() as patch:
            patch.setattr(Margins, flag, False)
            assert not declares(margins, 60)
