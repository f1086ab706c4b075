"""Probe accuracy and robust accuracy: oracles, closed forms, flags, bad input, the whole pipeline."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.attacked_codes import Untargeted
from holdfast.core.balls import L2, Ball, Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import settings
from holdfast.measure.population import Population
from holdfast.probes.evaluations.probe_accuracy import ProbeAccuracy
from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy
from holdfast.probes.linear import Linear, LinearScores
from holdfast.probes.neighbours import Knn
from holdfast.probes.probed_codes import TransferredAnswers
from holdfast.run.request import Request, planned
from holdfast.transforms.subsets import long_tail
from tests import tiny
from tests.probes.known import clouds, population

QUICK = AdaptiveAttack(restarts=1, steps=10)


def seven(count: int, seed: int) -> Images:
    """Images of seven classes that hardly differ."""
    plain = clouds(count, seed)
    return Images(plain.pixels(range(count)), plain.ids, torch.arange(count) % 7, "seven")


def test_accuracies_are_those_of_the_scores() -> None:
    images, bank = seven(70, 2), seven(140, 1)
    result = ProbeAccuracy(probes=(Knn(k=9), Linear()))(tiny.encoder(), images, RunSettings(), bank)
    asked = population(bank, images, RunSettings())
    for probe in (Knn(k=9), Linear()):
        scores = asked.learned(probe).scores(asked.codes)
        for quantity, top in (("top1_accuracy", 1), ("top5_accuracy", 5)):
            best = scores.topk(top)  # a class without a vote is no answer, though it be among the best five
            held = ((best.indices == asked.labels[:, None]) & (best.values != 0)).any(1).double().mean()
            assert result.estimate(quantity, probe=str(probe)).value == pytest.approx(float(held))
        own = (scores.argmax(1) == asked.labels)[asked.labels == 3].double().mean()
        found = [e for e in result.estimates if e.conditions == {"probe": str(probe), "class": "3"}]
        assert [e.value for e in found] == [pytest.approx(float(own))]
        (curve,) = (c for c in result.findings.curves if c.conditions == {"probe": str(probe)})
        assert list(curve.y) == sorted(e.value for e in result.estimates if e.quantity == "class_accuracy" and
                                       e.conditions["probe"] == str(probe))  # fmt: skip
    assert result.estimate("chance_accuracy").value == pytest.approx(1 / 7)


def test_a_probe_at_chance_is_flagged() -> None:
    generator = torch.Generator().manual_seed(0)
    plain = clouds(90, 2)
    luck = Images(plain.pixels(range(90)), plain.ids, 3 + torch.randint(3, (90,), generator=generator))
    evaluation = ProbeAccuracy(probes=(Knn(k=5),))
    (said,) = evaluation(tiny.encoder(), luck, RunSettings(), clouds(60, 1)).findings.warnings
    assert said.startswith("AT CHANCE: knn:k=5 is right on")
    assert not evaluation(tiny.encoder(), plain, RunSettings(), clouds(60, 1)).findings.warnings
    robust = RobustAccuracy(balls=(Linf(0.1),), probes=(Knn(k=5),), attacks=(QUICK,))
    assert any(
        said.startswith("AT CHANCE")
        for said in robust(tiny.encoder(), luck, RunSettings(), clouds(60, 1)).findings.warnings
    )


def test_classes_that_the_bank_does_not_show_count_as_wrong_and_are_named() -> None:
    images, bank = clouds(40, 2, classes=4), clouds(60, 1, classes=3)
    result = ProbeAccuracy(probes=(Knn(), Linear()))(tiny.encoder(), images, RunSettings(), bank)
    capped, absent = result.findings.warnings
    assert capped == "knn asks 200 neighbours, and the bank has 60 images: all of them vote"
    assert absent.startswith("The bank shows no image of 1 of the classes measured (6): their 10 images count as wrong")
    for probe in ("knn", "linear"):
        assert [e.value for e in result.estimates if e.conditions == {"probe": probe, "class": "6"}] == [0]
        (margins,) = (s for s in result.series if s.quantity == "class_margin" and s.conditions == {"probe": probe})
        assert sum(map(isnan, margins.values)) == 10
    attacked = RobustAccuracy(balls=(Linf(0.01),), attacks=(QUICK,))(tiny.encoder(), images, RunSettings(), bank)
    assert all(e.value <= 0.75 for e in attacked.estimates if e.quantity == "robust_accuracy")


def test_class_names_are_used() -> None:
    images, bank = clouds(20, 2, classes=2), clouds(40, 1, classes=2)
    images, bank = (
        Images(one.source, one.ids, torch.as_tensor(one.labels) - 3, one.name, ["cat", "dog"]) for one in (images, bank)
    )
    result = ProbeAccuracy(probes=(Linear(),))(tiny.encoder(), images, RunSettings(), bank)
    assert {e.conditions["class"] for e in result.estimates if e.quantity == "class_accuracy"} == {"cat", "dog"}
    assert all(e.quantity != "top5_accuracy" for e in result.estimates), "of two classes, all are among five"


@pytest.mark.parametrize("ball", [Linf(0.06), L2(0.05)], ids=str)
def test_robust_accuracy_of_a_linear_probe_on_a_linear_encoder_is_known(ball: Ball) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder = tiny.encoder()
    labels = torch.arange(120) % 3
    pixels = 0.5 + 0.1 * torch.eye(4)[labels] + 0.05 * torch.rand(120, 4, generator=generator)  # no edge is near
    images, bank = (
        Images(pixels[rows].reshape(-1, 1, 2, 2), [f"{name}{row}" for row in range(60)], labels[rows])
        for name, rows in (("a", slice(0, 60)), ("b", slice(60, 120)))
    )
    evaluation = RobustAccuracy(balls=(ball,), attacks=(AdaptiveAttack(restarts=2, steps=30),), probes=(Linear(),))
    result = evaluation(encoder, images, RunSettings(precision="float64"), bank)
    asked = population(bank, images)
    head = asked.learned(Linear())
    assert isinstance(head, LinearScores)
    logits, slope = head.scores(asked.codes), 2.0 * head.weight
    kept = torch.ones(60, dtype=torch.bool)
    for other in range(3):
        away = slope[asked.labels] - slope[other]
        gap = logits.gather(1, asked.labels[:, None])[:, 0] - logits[:, other]
        kept &= (gap > ball.radius * ball.dual_norm(away)) | (asked.labels == other)
    found = result.estimate("robust_accuracy", attack="adaptive:restarts=2,steps=30 at the probe")
    assert found.value == pytest.approx(float(kept.double().mean()), abs=1 / 60)
    assert 0 < found.value < 1, "vacuous"


def test_success_is_what_is_lost_and_every_curve_starts_clean() -> None:
    evaluation = RobustAccuracy(balls=(Linf(0.05), Linf(0.15)), attacks=(QUICK,), probes=(Knn(k=5), Linear()))
    result = evaluation(tiny.encoder(), clouds(40, 2), RunSettings(), clouds(60, 1))
    for probe in ("knn:k=5", "linear"):
        clean = result.estimate("clean_accuracy", probe=probe)
        for ball in ("linf:0.05", "linf:0.15"):
            for aim in ("the probe", "the code"):
                where = {"probe": probe, "ball": ball, "attack": f"{QUICK} at {aim}"}
                robust, lost = (result.estimate(name, **where) for name in ("robust_accuracy", "attack_success_rate"))
                assert robust.value == pytest.approx(clean.value * (1 - lost.value))
                assert lost.n == round(clean.value * 40)
        (curve, *_) = (c for c in result.findings.curves if c.conditions["probe"] == probe)
        assert curve.x == (0.0, 0.05, 0.15)
        assert curve.y[0] == clean.value > curve.y[2]
    assert [picture.labels for picture in result.findings.pictures] == [("clean", "attacked", "change")] * 3


def test_the_label_free_attack_sees_neither_labels_nor_probes() -> None:
    images, bank = clouds(12, 2), clouds(30, 1)
    other = Images(images.source, images.ids, 8 - torch.as_tensor(images.labels))
    observation = TransferredAnswers((Linear(), Knn()), Linf(0.1), (QUICK,), L2Distance(), 12)
    moved = [observation.pixels(population(bank, one), range(12))[0] for one in (images, other)]
    assert torch.equal(*moved)
    asked = population(bank, images)
    assert torch.equal(moved[0], Untargeted(Linf(0.1), (QUICK,), L2Distance(), 12).pixels(asked, range(12))[0])


def test_what_is_missing_is_asked_for() -> None:
    unlabelled = tiny.images()
    with pytest.raises(HoldfastError, match="this needs a bank"):
        ProbeAccuracy()(tiny.encoder(), clouds(9, 2))
    with pytest.raises(HoldfastError, match="this needs labels, and tiny images has none"):
        ProbeAccuracy()(tiny.encoder(), unlabelled, RunSettings(), clouds(20, 1))
    with pytest.raises(HoldfastError, match="this needs labels, and tiny images has none"):
        ProbeAccuracy()(tiny.encoder(), clouds(9, 2), RunSettings(), unlabelled)
    with pytest.raises(HoldfastError, match="show one class"):
        RobustAccuracy()(tiny.encoder(), clouds(9, 2), RunSettings(), clouds(9, 1, classes=1))
    with pytest.raises(HoldfastError, match="no bank of images for robust-accuracy to learn from; name it with --bank"):
        planned(Request(only=("robust-accuracy",)))
    assert not any(evaluation.needs_bank for evaluation in planned(Request()))


@pytest.mark.slow
def test_a_run_learns_each_probe_once_and_resumes(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "only": ["probe-accuracy", "robust-accuracy"],
        "bank": "builtin:digits-train",
        "limit": 30,
        "settings": {"robust-accuracy": {"samples": 10, "attacks": "pgd:steps=3", "balls": "linf:0.1"}},
    }
    first = hf.evaluate("builtin:digits-random", "builtin:digits", out=tmp_path / "run", **asked)
    assert len([*(tmp_path / "run" / "fits").iterdir()]) == 2, "two evaluations share two probes"
    again = hf.evaluate("builtin:digits-random", "builtin:digits", out=tmp_path / "run", **asked)
    for name in asked["only"]:
        assert first[name].model_dump_json() == again[name].model_dump_json()
    assert first["probe-accuracy"].bank is not None


class Blind(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :2] * 0 + 1


def test_a_collapsed_encoder_knows_nothing() -> None:
    encoder = Encoder(Blind(), "blind", Domain((1, 2, 2)))
    result = ProbeAccuracy(probes=(Knn(k=5), Linear()))(encoder, clouds(30, 2), RunSettings(), clouds(60, 1))
    assert sum(said.startswith("AT CHANCE") for said in result.findings.warnings) == 2
    held = Population(encoder, clouds(60, 1), RunSettings())
    probe = Population(encoder, clouds(30, 2), RunSettings(), bank=held).learned(Knn(k=60))
    assert float((probe.ranks(held.codes[:3], held.labels[:3]) == 0).double().mean()) == 0, "a tie decides nothing"


@pytest.mark.parametrize("shots", ["bank", "long-tail:most=120,least=10"])
def test_accuracies_of_classes_with_many_and_few_training_images(shots: str) -> None:
    images, plain = clouds(60, 2), clouds(400, 1)
    assert plain.labels is not None
    tail = long_tail(plain, 120, 10)
    bank = tail.images if shots == "bank" else plain
    result = ProbeAccuracy(probes=(Knn(k=5),), shots=shots)(tiny.encoder(), images, RunSettings(), bank)
    (right,) = (s for s in result.series if s.quantity == "classified_right")
    many, *medium, few = tail.classes
    for name, classes in (("many", [many]), ("medium", medium), ("few", [few])):
        rows = torch.isin(torch.as_tensor(images.labels), torch.tensor(classes))
        found = result.estimate("shot_accuracy", shots=name)
        assert found.n == int(rows.sum())
        assert found.value == pytest.approx(float(torch.tensor(right.values)[rows].mean()))


def test_groups_of_shots_that_there_are_not() -> None:
    assert "shots" not in settings(ProbeAccuracy()), "results that were stored before keep their keys"
    for shots in ("uniform:total=9", "many"):
        with pytest.raises(HoldfastError):
            ProbeAccuracy(probes=(Knn(k=5),), shots=shots)(tiny.encoder(), clouds(30, 2), RunSettings(), clouds(60, 1))
