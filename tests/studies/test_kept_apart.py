"""Encoders kept apart: who they are, what is measured of them besides, and what becomes of the advice."""

from __future__ import annotations

import doctest
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
import torch
from studies.agreement import again, confirmation, figures, opening, threats
from studies.agreement.conclusions import Resampled, beyond, concluded
from studies.agreement.confirmation import ADVICE, CLAIMS, confirmed, lowered
from studies.agreement.judged import Confirmation, Judged, Undefended
from studies.agreement.kept_apart import KEPT, PRUNED, QUANTISED
from studies.agreement.limits import UNDEFENDED
from studies.agreement.measures import HEADLINES, RADIUS
from studies.agreement.members import ZOO
from studies.agreement.references import REFERENCES
from studies.agreement.threats import THREATS, classifier, copies_found, foolbox_keeps, patch_keeps
from studies.agreement.verdicts import Verdict
from studies.agreement.zoo import Zoo, copied, degenerate, find
from torch import nn

import holdfast as hf
from studies import common
from tests.studies.test_zoo import made_up, quick  # noqa: F401


def test_the_advice_was_made_without_them_and_most_have_met_no_attack() -> None:
    cases = [member.case for member in (*ZOO, *KEPT)]
    assert len(set(cases)) == len(cases)
    trained = [member for member in KEPT if not member.degenerate]
    advised = [member for member in ZOO if not member.degenerate]
    assert len(trained) >= len(advised) / 2, "a third of all"
    assert sum(not member.eps for member in trained) > len(trained) / 2
    for member in trained:
        assert bool(member.copy) != bool(member.recipe)
        assert not member.start or find(member.start, member.dataset).recipe
    assert ADVICE.keys() == {headline.name for headline in HEADLINES}
    assert [one.name for one in CLAIMS if one.kind == "agrees"][1:] == [k for k, v in ADVICE.items() if v == "some"]


def test_examples_are_right() -> None:
    assert doctest.testmod(confirmation).attempted
    assert not doctest.testmod(confirmation).failed


@pytest.mark.parametrize("copy", [QUANTISED, PRUNED])
def test_copies_are_what_they_say(copy: str) -> None:
    original = common.untrained("base", hf.Domain((1, 28, 28)), 0)
    made = copied(original, copy)
    for name, weight in made.module.named_parameters():
        before = dict(original.module.named_parameters())[name]
        if weight.ndim == 1:
            assert torch.equal(weight, before)
        elif copy == QUANTISED:
            assert len(weight.unique()) <= 15
            assert (weight - before).abs().max() <= before.abs().max() / 14 * 1.001
        else:
            assert float((weight == 0).double().mean()) == pytest.approx(0.8, abs=0.01)
            assert torch.equal(weight[weight != 0], before[weight != 0])


def images(n: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return pixels, torch.arange(n) % 2


def bright(weight: float) -> nn.Module:
    """Return a head that calls bright images 1, and trusts in it by ``weight``."""
    layer = nn.Linear(784, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([torch.zeros(784), torch.full((784,), weight)]))
        layer.bias.copy_(torch.tensor([0.0, -0.5 * 784 * weight]))
    return nn.Sequential(nn.Flatten(), layer).eval()


def test_a_patch_takes_what_hangs_on_few_pixels() -> None:
    pixels, labels = images()
    pixels = (0.4 + 0.2 * labels[:, None, None, None]).expand_as(pixels).clone()
    assert patch_keeps(bright(1.0), pixels, labels).tolist() == [1.0] * 12, "49 of 784 pixels move the mean by .03"
    pixels = 0.5 + (pixels - 0.5) * 0.1
    assert patch_keeps(bright(1.0), pixels, labels).tolist() == [0.0] * 12
    assert patch_keeps(bright(1.0), pixels, 1 - labels).tolist() == [0.0] * 12, "wrong from the beginning"


def test_another_program_finds_what_is_there() -> None:
    pytest.importorskip("foolbox")
    pixels, labels = images()
    pixels = (0.4 + 0.2 * labels[:, None, None, None]).expand_as(pixels).clone()
    assert foolbox_keeps(bright(0.01), pixels, labels, 0.05).tolist() == [1.0] * 12
    assert foolbox_keeps(bright(0.01), pixels, labels, 0.15).tolist() == [0.0] * 12


def test_edited_copies_are_found_by_pixels_and_lost_by_noise() -> None:
    pixels, _ = images(6)
    bank = torch.rand(30, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    by_pixels = hf.Encoder(nn.Flatten(), "pixels", hf.Domain((1, 28, 28)))
    shares = copies_found(by_pixels, pixels, bank)
    assert shares.shape == (6,)
    assert shares.mean() > 0.5
    nothing = hf.Encoder(nn.Sequential(nn.Flatten(), nn.Linear(784, 3)), "few", hf.Domain((1, 28, 28)))
    with torch.no_grad():
        for weight in nothing.module.parameters():
            weight.fill_(1.0)
    assert copies_found(nothing, pixels, bank).mean() < 0.5


@pytest.mark.slow
def test_the_head_of_a_classifier_is_learned_from_the_bank() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    pixels = (labels[:, None, None, None] / 3 + 0.1 * torch.rand(60, 1, 28, 28, generator=generator)).float()
    encoder = hf.Encoder(nn.Sequential(nn.Flatten(), nn.Linear(784, 5)), "any", hf.Domain((1, 28, 28)))
    head = classifier(encoder, hf.Images(pixels, labels=labels))
    assert (head(pixels).argmax(1) == labels).all()


def six_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let zoos be of random images, of which six are attacked."""
    generator = torch.Generator().manual_seed(0)
    pixels, labels = torch.rand(80, 1, 28, 28, generator=generator), torch.arange(80) % 4
    monkeypatch.setattr(Zoo, "_arrays", lambda self, dataset, part: (pixels, labels))
    monkeypatch.setattr(threats, "IMAGES", 6)


@pytest.mark.slow
def test_what_has_weights_is_fine_tuned_and_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    six_images(monkeypatch)
    zoo, domain = Zoo(tmp_path, tmp_path), hf.Domain((1, 28, 28))
    encoder = common.untrained("base", domain, 0)
    before = encoder.fingerprint
    right = threats.fine_tuned(zoo, find("supervised", "fashion"), encoder, tmp_path / "tuned")
    assert right.shape == (6,)
    assert set(right) <= {0.0, 1.0}
    assert encoder.fingerprint == before, "the encoder that is measured stays as it is"
    pixels = degenerate("pixels", domain, 0, zoo.bank("fashion"))
    assert np.isnan(threats.fine_tuned(zoo, find("pixels", "fashion"), pixels, tmp_path / "pixels")).all()


@pytest.mark.slow
def test_threats_are_measured_as_they_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    pytest.importorskip("foolbox")
    six_images(monkeypatch)
    monkeypatch.setattr(threats, "outside", lambda zoo, dataset: common.untrained("base", hf.Domain((1, 28, 28)), 5))
    encoder = common.untrained("base", hf.Domain((1, 28, 28)), 0)
    values, series = threats.measured(Zoo(tmp_path, tmp_path), find("supervised", "fashion"), encoder, tmp_path)
    assert values.keys() == series.keys() == {threat.name for threat in THREATS}
    assert all(len(parts) == 6 and min(parts) >= 0 and max(parts) <= 1 for parts in series.values())
    assert values["attacks together"] <= values["query-only attack"] + 1


def apart(agreeing: bool) -> Resampled:
    """Return encoders kept apart whose measures all follow the reference, or none does, and threats as the reference."""
    found = made_up(agreeing)
    values: dict[str, Any] = {threat.name: found.values["robust area"] for threat in THREATS}
    values |= {"seconds": np.full(len(found.members), 20.0)}
    found = replace(found, values={**found.values, **values})
    return Resampled.of(found, (REFERENCES[0], *THREATS))


@pytest.mark.usefixtures("quick")
def test_claims_hold_where_measures_follow_the_reference_and_grades_only_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.agreement.conclusions.REPLICATES", 400)
    good, bad = (confirmed(apart(agreeing)) for agreeing in (True, False))
    by = {one.claim.name: one for one in good if one.claim.kind == "agrees"}
    assert by["overlap"].value == pytest.approx(1)
    assert by["overlap"].adjusted < 0.2, "400 replicates cannot say more for eight claims"
    assert not any(one.held for one in bad if one.claim.kind == "agrees")
    held = [replace(one, adjusted=0.01) for one in good]
    before = [Verdict("overlap", "some", ("a doubt",)), Verdict("RankMe", "none"), Verdict("SynBench", "use")]
    assert lowered(before, held) == before
    after = lowered(before, [replace(one, value=-0.1) for one in held])
    assert [one.kind for one in after] == ["none", "none", "none"]
    assert after[0].reasons[0] == "a doubt"


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_page_opens_with_five_sentences_that_say_what_held() -> None:
    kept = apart(agreeing=True)
    found = replace(kept.found, values={**kept.found.values, "training radius": kept.found.values["robust area"]})
    kept = replace(kept, found=found)
    claims = [replace(one, adjusted=0.01) for one in confirmed(kept)]
    above = claims[0].ends
    alone = Undefended(
        12,
        dict.fromkeys(kept.names, (0.5, above)),
        dict.fromkeys(kept.names, above),
        dict.fromkeys(kept.names, above),
        0.4,
    )
    tested = Confirmation(found, concluded(kept), beyond(kept, RADIUS), alone, claims)
    verdicts = [Verdict(name, grade) for name, grade in ADVICE.items()]
    before = {UNDEFENDED: (12, alone.taus)}
    judged = Judged(found, concluded(Resampled.of(found)), tested.beyond, before, verdicts, tested)
    lines, pictures = opening.opening(judged)
    numbered = [line for line in lines if line[:2] in {f"{k}." for k in range(1, 10)}]
    assert len(numbered) == 5
    assert "was confirmed on 12" in numbered[0]
    advised = numbered[2].split("**")[1]
    assert all(name in advised for name, grade in ADVICE.items() if grade == "some")
    assert pictures.keys() == {opening.PICTURE}
    assert "second trainings" not in numbered[2]
    lines, _ = opening.opening(replace(judged, second=tested))
    (again_held,) = (line.split("second trainings")[1].split(".")[0] for line in lines if "second trainings" in line)
    assert all(name in again_held for name, grade in ADVICE.items() if grade == "some")
    failed = replace(tested, claims=[replace(one, value=-0.5) for one in claims])
    lines, _ = opening.opening(replace(judged, again=failed))
    assert any("no longer advised: attack radius" in line for line in lines)
    lines, pictures = opening.opening(replace(judged, again=None))
    assert sum("not tested" in line for line in lines) == 3
    assert "not tested" in pictures[opening.PICTURE]
    text = [*again.waiting(3)]
    assert any("Measured so far: 3." in line for line in text)
    assert sum(line.endswith("| open |") for line in text) == len(CLAIMS)
    text, drawn = again.put_to_the_test(failed, None)
    assert sum("not confirmed |" in line for line in text) == len(CLAIMS)
    assert not any("second time" in line for line in text)
    text, _ = again.put_to_the_test(failed, tested)
    rows = [line for line in text if "not confirmed |" in line]
    held = [row.endswith("| confirmed |") for row in rows]
    assert held == [one.held for one in tested.claims], "second trainings stand beside the first"
    assert any(held)
    assert any(line.startswith("12 ") and "second time" in line for line in text)
    assert any(line.endswith("New: none.") for line in text)
    assert drawn.keys() == {again.THREATENED}


def test_a_number_that_is_not_known_has_no_bar() -> None:
    unknown = figures.twice([("a", (nan, nan, nan), (0.5, 0.2, 0.7), "held")], ("first", "then"))
    assert unknown.count("<circle") == 1
    assert ">held<" in unknown
