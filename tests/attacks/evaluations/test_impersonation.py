"""Impersonation as a probe sees it: the definition by loops, and nothing of it without a labelled bank."""

from __future__ import annotations

from math import isnan
from typing import Any

import pytest
import torch

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import Targeted
from holdfast.attacks.evaluations.impersonation import Impersonation
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.store import key_of
from holdfast.probes.neighbours import Knn
from holdfast.probes.own_encoder import LowPassProbe
from tests import tiny
from tests.facts import says
from tests.probes.known import clouds, population

ATTACK = AdaptiveAttack(restarts=1, steps=10)
SMALL: dict[str, Any] = {"balls": (Linf(0.2),), "attacks": (ATTACK,), "divergences": (L2Distance(),), "probe": Knn(k=9)}


def test_success_is_what_the_probe_says_of_both_ways() -> None:
    images, bank = clouds(40, 2), clouds(60, 1)
    result = Impersonation(**SMALL)(tiny.encoder(), images, RunSettings(), bank)
    asked = population(bank, images, RunSettings())
    observation = Targeted(Linf(0.2), (ATTACK,), L2Distance(), 1024)
    rows = observation.rows(asked)
    seen, probe = observation.observe(asked, rows), asked.learned(Knn(k=9))

    def answer(code: torch.Tensor) -> int:
        return int(probe.classes[probe.scores(code[None]).argmax()])

    expected = []
    for place, row in enumerate(rows):
        other = int(asked.partners[row])
        own, theirs = int(asked.labels[row]), int(asked.labels[other])
        if own != theirs and answer(asked.codes[row]) == own and answer(asked.codes[other]) == theirs:
            ways = answer(seen["0.ahead"][place]) == theirs, answer(seen["0.back"][place]) == own
            expected.append(sum(ways) / 2)
    found = result.estimate("impersonation_success_rate", probe="knn:k=9")
    assert found.n == len(expected) > 5
    assert found.value == pytest.approx(sum(expected) / len(expected))
    assert 0 < found.value < 1, "vacuous"
    sheets = [picture for picture in result.findings.pictures if "taken for" in picture.caption]
    assert sheets
    assert {picture.labels for picture in sheets} == {("clean", "attacked", "target")}


def test_pairs_between_classes_never_share_a_class() -> None:
    images, bank = clouds(40, 2), clouds(60, 1)
    asked = population(bank, images, RunSettings())
    plain, apart = (Targeted(Linf(0.2), (ATTACK,), L2Distance(), 1024, by_class) for by_class in (False, True))
    pairs = [(row, int(apart.paired(asked).partners[row])) for row in apart.rows(asked)]
    assert len({row for pair in pairs for row in pair}) == 2 * len(pairs) > 20, "no image is in two pairs"
    assert all(asked.labels[row] != asked.labels[other] for row, other in pairs)
    assert any(asked.labels[row] == asked.labels[asked.partners[row]] for row in plain.rows(asked)), "vacuous"
    moved, (ahead,) = apart.observe(asked, [pairs[0][0]]), apart.pixels(asked, [pairs[0][0]], [pairs[0][1]])
    assert torch.equal(moved["0.ahead"], asked.encode(ahead))
    found, before = (
        Impersonation(**SMALL, by_class=by_class)(tiny.encoder(), images, RunSettings(), bank)
        for by_class in (True, False)
    )
    rates = [result.estimate("impersonation_success_rate", probe="knn:k=9") for result in (found, before)]
    share = [rate.n / len(result.findings.ids) for rate, result in zip(rates, (found, before), strict=True)]
    assert share[0] > share[1]
    assert "labels" in key_of(apart, tiny.encoder(), images, RunSettings()).settings
    assert "labels" not in key_of(plain, tiny.encoder(), images, RunSettings()).settings
    with pytest.raises(HoldfastError, match="labels"):
        apart.rows(population(bank, Images(images.source, images.ids), RunSettings()))


def test_without_a_labelled_bank_nothing_changes() -> None:
    images, bank = clouds(20, 2), clouds(60, 1)
    unlabelled = Images(bank.source, bank.ids)
    results = [Impersonation(**SMALL)(tiny.encoder(), images, RunSettings(), one) for one in (None, unlabelled, bank)]
    for result in results[:2]:
        assert {e.quantity for e in result.estimates} == {"relative_quantile", "impersonation_rate"}
        assert not result.findings.warnings
        assert [e for e in results[2].estimates if "probe" not in e.conditions] == [*result.estimates]


def test_a_probe_that_cannot_judge_is_a_warning_alone() -> None:
    images, one_class = clouds(20, 2), clouds(30, 1, classes=1)
    (said,) = Impersonation(**SMALL)(tiny.encoder(), images, RunSettings(), one_class).findings.warnings
    assert said.startswith(
        "How a probe sees the attacks is not known: all 30 images of the bank clouds 1 show one class"
    )
    filtered = Impersonation(**{**SMALL, "probe": LowPassProbe(1.0)})
    (said,) = filtered(tiny.encoder(), images, RunSettings(), clouds(60, 1)).findings.warnings
    assert says(said, "low-pass:1.0", "encoder")
    same = Impersonation(**SMALL)(tiny.encoder(), clouds(20, 2, classes=1), RunSettings(), clouds(60, 1))
    assert isnan(same.estimate("impersonation_success_rate").value)
