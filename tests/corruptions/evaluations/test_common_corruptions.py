"""Common corruptions without labels: against a slow, obvious computation; what means nothing is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim
from holdfast.core.run_settings import RunSettings
from holdfast.corruptions.evaluations.common_corruptions import CommonCorruptions
from holdfast.measure.population import represent
from holdfast.transforms.base import transformed
from tests.samples import builtin, digits

FEW = CommonCorruptions(kinds=("gaussian-noise-c", "contrast-c"), severities=(1, 4), samples=12, k=3)
IMAGES = digits(30, 1200)


def test_retrieval_is_that_of_the_definition_and_needs_no_labels() -> None:
    result = FEW(builtin(), IMAGES, RunSettings())
    unit = torch.nn.functional.normalize(represent(builtin(), IMAGES, range(30), RunSettings()).double())
    kept = []
    for name in FEW.kinds:
        for severity in FEW.severities:
            changed = transformed(IMAGES, f"{name}:{severity}")
            codes = torch.nn.functional.normalize(represent(builtin(), changed, range(30), RunSettings()).double())
            nearest = (codes @ unit.T).argmax(1) == torch.arange(30)
            rows = [IMAGES.ids.index(name) for name in result.findings.ids]
            kept.append(float(nearest[rows].double().mean()))
            case = {"corruption": name, "severity": str(severity)}
            assert result.estimate("nearest_neighbour_accuracy", **case).value == pytest.approx(kept[-1])
    assert result.estimate("corruptions_survived").value == pytest.approx(sum(kept) / 4)
    assert 0 < sum(kept) < 4, "vacuous"
    worst = [result.estimate("worst_corruption_accuracy", severities=f"up to {severity}") for severity in (1, 4)]
    assert min(kept) >= worst[1].value
    assert worst[0].value >= worst[1].value
    assert worst[0].claim is Claim.UPPER
    assert result.estimate("worst_corruption_quantile").claim is Claim.LOWER


def test_the_bank_is_searched_where_there_is_one() -> None:
    changed = transformed(IMAGES, "contrast-c:4").pixels(range(30))  # what corrupted images come close to
    bank = Images(changed, [f"bank{k}" for k in range(30)])
    alone, searched = FEW(builtin(), IMAGES, RunSettings()), FEW(builtin(), IMAGES, RunSettings(), bank)
    assert alone.estimate("corruptions_survived").value > searched.estimate("corruptions_survived").value


def test_curves_run_over_severities() -> None:
    curves = [one for one in FEW(builtin(), IMAGES, RunSettings()).findings.curves if one.x_label == "severity"]
    assert curves
    assert {one.x for one in curves} == {(1.0, 4.0)}


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(HoldfastError, match="Did you mean 'fog-c'"):
        CommonCorruptions(kinds=("fog",))
    with pytest.raises(HoldfastError, match="severities has 1 twice; keep one"):
        CommonCorruptions(severities=(1, 1))
    with pytest.raises(HoldfastError, match="severities must ascend, got 4, 1"):
        replace(FEW, severities=(4, 1))
    with pytest.raises(HoldfastError, match="severity"):
        replace(FEW, severities=(6,)).observation()
