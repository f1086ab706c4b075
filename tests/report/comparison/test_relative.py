"""Errors under common corruptions relative to another encoder, formed from stored results."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.corruptions.evaluations.corruption_error import CorruptionError
from holdfast.encoders.baseline import raw_pixels
from holdfast.report.comparison.comparable import EACH, MEAN, groups, with_relative_errors
from holdfast.report.comparison.compare import compare
from holdfast.report.comparison.tables import summary
from holdfast.report.files import write
from tests.facts import refused, says
from tests.samples import DIGITS, builtin, classes
from tests.samples import digits as unlabelled

FEW = CorruptionError(kinds=("gaussian-noise-c", "contrast-c"), severities=(1, 4), samples=50)


def digits(count: int, start: int) -> Images:
    """Digits with their labels."""
    plain = unlabelled(count, start)
    return Images(plain.pixels(range(count)), plain.ids, classes(count, start))


@cache
def measured(severities: tuple[int, ...] = (1, 4)) -> tuple[Result, Result]:
    """Return what was measured of a trained encoder and of raw pixels, which come last as baselines do."""
    images, bank = digits(50, 1200), digits(150, 0)
    few = replace(FEW, severities=severities)
    return few(builtin(), images, RunSettings(), bank), few(raw_pixels(DIGITS), images, RunSettings(), bank)


def test_ratios_to_a_baseline_are_those_of_sums_of_errors() -> None:
    ours, pixels = measured()
    mine, theirs = with_relative_errors([ours, pixels], "pixels")
    found = {one.conditions["corruption"]: one for one in mine.estimates if one.quantity in (EACH, MEAN)}
    itself = [one for one in theirs.estimates if one.quantity in (EACH, MEAN)]
    ratios = []
    for name in FEW.kinds:
        above, below = (
            sum(result.estimate("corruption_error", corruption=name, severity=s).value for s in ("1", "4"))
            for result in (ours, pixels)
        )
        ratios.append(above / below)
        assert found[name].value == pytest.approx(ratios[-1])
        assert found[name].low < found[name].value < found[name].high
    assert found["all"].value == pytest.approx(sum(ratios) / 2)
    assert len(itself) == 1 + len(FEW.kinds)
    assert all(one.value == pytest.approx(1) for one in itself)
    other = measured((1,))[1]
    assert with_relative_errors([ours, other]) == [ours, other], "other settings are never compared"


def test_tables_show_them_relative_to_the_baseline_of_the_run_or_to_who_is_named() -> None:
    ours, pixels = measured()
    mine, theirs = with_relative_errors([ours, pixels])
    assert mine.estimate(MEAN, baseline="pixels").value > 0
    assert theirs.estimate(MEAN).value == pytest.approx(1)
    assert {one.conditions["corruption"] for one in mine.estimates if one.quantity == EACH} == {*FEW.kinds}
    turned = with_relative_errors([ours, pixels], ours.encoder.name)
    assert turned[1].estimate(MEAN, baseline=ours.encoder.name).value > 1 > mine.estimate(MEAN).value
    comparison = compare([mine, theirs])
    (table,) = summary(groups([mine, theirs]), comparison)
    (section,) = (section for section in table.sections if section.like.quantity == MEAN)
    (row,) = section.rows
    assert [cell.value if cell else "" for cell in row.cells][1] == "1"
    assert row.contest is not None
    assert row.contest.pairs[0].difference.value == pytest.approx(mine.estimate(MEAN).value - 1)


def test_one_encoder_alone_and_unknown_names() -> None:
    ours, pixels = measured()
    assert with_relative_errors([ours]) == [ours]
    with pytest.raises(HoldfastError, match=r"relative to 'pixel'.*Did you mean 'pixels'"):
        with_relative_errors([ours, pixels], "pixel")
    with refused(HoldfastError, "corruption", "encoders"):
        with_relative_errors([ours], "pixels")


def test_the_report_is_made_of_stored_records_alone(tmp_path) -> None:
    stored = [Result.model_validate_json(one.model_dump_json()) for one in measured()]
    assert not any(one.quantity == MEAN for result in stored for one in result.estimates)
    written = write(stored, [], tmp_path)
    assert says(written["report.html"].read_text(), "relative mean corruption")
    assert MEAN in written["table.csv"].read_text()
