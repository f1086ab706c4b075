"""``attack``, ``certify`` and ``spade`` from Python do what their commands do: folders, budgets, workers, smoothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.attacks.adversarial import AttackRecord
from holdfast.cli.app import run
from holdfast.run import computing
from holdfast.run import forecast as deadline
from tests.facts import refused, warned
from tests.spectral.graphs import folded
from tests.tiny import encoder, images

QUICK: dict[str, Any] = {"attack": "pgd:steps=2", "progress": False}
DIGITS = ("builtin:digits-contrastive", "builtin:digits")


@pytest.mark.slow
def test_an_attack_in_a_folder_is_that_of_the_command(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"preset": "u-pgd", "divergence": "cosine", "eps": "2/255", "limit": 6}
    moved = hf.attack("builtin:digits-random", "builtin:digits", **flags, **QUICK, out=tmp_path / "python")
    texts = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    command = ["attack", "builtin:digits-random", "--images", "builtin:digits", *texts, "--attack", "pgd:steps=2"]
    assert run([*command, "--out", str(tmp_path / "command")]) == 0
    python, shell = (
        AttackRecord.model_validate_json((tmp_path / name / "attack.json").read_text())
        for name in ("python", "command")
    )
    assert moved.record == python
    assert python.model_copy(update={"provenance": {}}) == shell.model_copy(update={"provenance": {}})
    assert python.settings["source"] == "u-pgd (Petrov and Kwiatkowska 2022), changed"
    assert python.settings["objective"] == "away:divergence=cosine"
    alone = hf.attack("builtin:digits-random", "builtin:digits", **flags, **QUICK)
    assert alone.record is None
    assert torch.equal(alone.attacked, moved.attacked)


@pytest.mark.slow
def test_workers_change_nothing() -> None:
    reference = "builtin:digits-random"
    here, there = (hf.attack(reference, "builtin:digits", limit=4, **QUICK, workers=count) for count in (None, 2))
    assert torch.allclose(here.attacked, there.attacked, atol=1e-6)


@pytest.mark.slow  # test_continuing asks the same of the command line, which calls this
def test_a_spent_budget_leaves_a_part_that_the_same_call_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {**QUICK, "limit": 5, "batch_size": 2, "ball": "linf:0.02", "negatives": 2, "out": tmp_path}
    with monkeypatch.context() as patch:
        # Time stands still until something was kept, and then the budget is spent.
        for module in (computing, deadline):
            patch.setattr(module, "monotonic", lambda: 1e9 if any(tmp_path.glob("shards/*/*")) else 0.0)
        patch.setattr("holdfast.run.run.budget_start", lambda: 0.0)
        with warned(hf.HoldfastWarning, "missing", "command"):
            part = hf.certify(*DIGITS, **asked, budget=1000.0)
    assert part.missing == 5 - len(part.certificates) > 0
    whole = hf.certify(*DIGITS, **asked)
    assert (whole.missing, len(whole.certificates)) == (0, 5)
    assert whole.model_dump_json(indent=1) == (tmp_path / "certify.json").read_text()


def test_a_budget_for_nothing_is_an_error() -> None:
    with refused(hf.BudgetSpentError, "5 images", "missing", "folder"):
        hf.attack(encoder(), images(5), **QUICK, budget=1e-9)
    with refused(hf.HoldfastError, "budget", "positive"):
        hf.attack(encoder(), images(5), **QUICK, budget=0.0)


@pytest.mark.slow
def test_smoothing_certifies_encoders_at_hand() -> None:
    record = hf.certify(
        hf.load_encoder(DIGITS[0]),
        DIGITS[1],
        hf.L2(0.1),
        method="smoothing:sigma=0.15,selection=200,copies=1000",
        negatives=5,
        limit=6,
        progress=False,
    )
    assert record.settings["method"] == "smoothing"
    assert 3 < record.counted("CERTIFIED") == 6 - record.counted("UNKNOWN")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "give the size of changes"),
        ({"eps": 0.1, "ball": "l2:1"}, "eps and ball"),
        ({"eps": 0.1, "size": 4}, "size.*tiny"),
        ({"eps": 0.1, "cluster": "ranks"}, "name it as out"),
        ({"eps": 0.1, "workers": 0}, "workers must be .* got 0"),
    ],
)
def test_what_does_not_fit_together_is_said(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(hf.HoldfastError, match=sentence):
        hf.certify(encoder(), images(4), **change)


@pytest.mark.slow
def test_spectral_scores_are_those_of_the_command_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = folded(120)
    first = hf.spade(x, torch.from_numpy(y), 5, subsets=0, labels=np.arange(120) % 2, out=tmp_path / "out")
    assert first.report == tmp_path / "out" / "report.html"
    monkeypatch.setattr("holdfast.spectral.arrays.measure", None)  # nothing is measured again
    again = hf.spade(x, y, 5, subsets=0, labels=np.arange(120) % 2, out=tmp_path / "out")
    assert again.result.model_dump_json() == first.result.model_dump_json()
    (score,) = (e for e in first.result.estimates if e.quantity == "spade_score" and "outputs" not in e.conditions)
    assert again.scores.score == first.scores.score == pytest.approx(score.value)
    with pytest.raises(hf.HoldfastError, match="another request"):
        hf.spade(x, y, 6, subsets=0, labels=np.arange(120) % 2, out=tmp_path / "out")
