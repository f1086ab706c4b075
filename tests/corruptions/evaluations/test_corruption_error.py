"""Errors under common corruptions: against a slow, obvious computation; ratios to a baseline; bad input."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.corruptions.evaluations.corruption_error import CorruptionError
from holdfast.measure.population import Population, represent
from holdfast.probes.linear import Linear
from holdfast.transforms.base import transformed, transforms
from holdfast.transforms.severity import FIFTEEN, CommonCorruption
from tests.samples import builtin, classes
from tests.samples import digits as unlabelled

FEW = CorruptionError(kinds=("gaussian-noise-c", "contrast-c"), severities=(2, 4), samples=50)


def digits(count: int, start: int) -> Images:
    """Digits with their labels."""
    plain = unlabelled(count, start)
    return Images(plain.pixels(range(count)), plain.ids, classes(count, start))


IMAGES, BANK = digits(50, 1200), digits(150, 0)


def test_errors_are_those_of_the_definition() -> None:
    result = FEW(builtin(), IMAGES, RunSettings(), BANK)
    population = Population(builtin(), IMAGES, RunSettings(), bank=Population(builtin(), BANK, RunSettings()))
    probe = population.learned(Linear())
    assert IMAGES.labels is not None
    found, seen = [], {}
    for name in FEW.kinds:
        for severity in FEW.severities:
            changed = transformed(IMAGES, f"{name}:{severity}")
            answers = probe.classes[probe.scores(represent(builtin(), changed, range(50), RunSettings())).argmax(1)]
            found.append(float((answers != IMAGES.labels).double().mean()))
            error = result.estimate("corruption_error", corruption=name, severity=str(severity))
            assert error.value == pytest.approx(found[-1])
        seen[name] = sum(found[-2:]) / 2
    assert result.estimate("mean_corruption_error").value == pytest.approx(sum(seen.values()) / 2)
    assert result.estimate("clean_error").value < seen["contrast-c"]
    assert len({*found}) > 2, "vacuous"


def test_the_defaults_are_the_fifteen_of_the_mean_corruption_error() -> None:
    common = {name for name, kind in transforms().items() if issubclass(kind, CommonCorruption)}
    assert common > {*FIFTEEN}
    assert common - {*FIFTEEN} == {"speckle-noise-c", "gaussian-blur-c", "spatter-c", "saturate-c"}
    assert len(CorruptionError().observation().parts) == 16


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(HoldfastError, match="Did you mean 'fog-c'"):
        CorruptionError(kinds=("fog",))
    with pytest.raises(HoldfastError, match="severities has 1 twice; keep one"):
        CorruptionError(severities=(1, 1))
    with pytest.raises(HoldfastError, match="severity"):
        replace(FEW, severities=(6,)).observation()
