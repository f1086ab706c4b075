"""``holdfast attack``: flags become an attack, and what it found is on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.attacks.adversarial import AttackRecord, Replay
from holdfast.attacks.presets import PRESETS
from holdfast.cli.app import run
from tests.cli.overriding import overriding
from tests.facts import says
from tests.marks import rest_slow

ATTACK = ["attack", "builtin:digits-random", "--images", "builtin:digits", "--limit", "6", "--out", "out"]
SHORT = ["--attack", "pgd:steps=2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def recorded() -> AttackRecord:
    return AttackRecord.model_validate_json(Path("out/attack.json").read_text())


def test_an_attack_says_what_it_did_and_where_it_is(capsys):
    assert run([*ATTACK, *SHORT]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("away by pgd:steps=2 in linf:0.05: ")
    assert says(first, "% of", "l2", "cosine")
    assert second == f"Attacked images: {Path('out/sheet.png')}"
    files = {"attack.json", "attack.safetensors", "images", "sheet.png"}
    assert {path.name for path in Path("out").iterdir()} == {*files, "request.json", "shards", "arrays"}
    assert len(list(Path("out/images").iterdir())) == len(recorded().moved) == 6


@pytest.mark.parametrize(
    ("eps", "sentence"),
    [
        ("0.5/255", "6 of 6 PNG files leave linf:0.5/255 (up to 1/255)"),
        ("0.3/255", "6 of 6 PNG files are the clean image again"),
        ("2/255", None),
    ],
)
def test_rounding_that_changes_an_attack_is_said(eps, sentence, capsys):
    np.save("images.npy", np.random.default_rng(0).integers(0, 256, (6, 8, 8, 1), dtype=np.uint8))
    given = ["attack", "builtin:digits-random", "--images", "images.npy", "--attack", "pgd:steps=2", "--eps", eps]
    assert run([*given, "--out", "out"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rounded")]
    exact = Path("out/attack.safetensors")
    assert lines == ([] if sentence is None else [f"rounded to 8 bits, {sentence}; {exact} holds the exact pixels"])


@pytest.mark.parametrize("name", rest_slow(["t-pgd", "acl-a2a", "rocl"]))
def test_presets_run_on_their_own_terms(name):
    assert run([*ATTACK, "--preset", name, "--seed", "3", "--precision", "float64"]) == 0
    known, record = PRESETS[name], recorded()
    assert record.settings == {
        "objective": str(known.objective),
        "attack": str(known.attack),
        "ball": str(known.ball),
        "source": f"{name} ({known.source})",
        "seed": "3",
        "precision": "float64",
    }
    assert record.replay.passed
    assert record.batch_sizes == (None if known.objective.per_sample else (6,))
    assert (record.moved[0].target is not None) == known.objective.targeted


def test_each_part_of_a_preset_can_be_replaced():
    given = ["--ball", "l2:0.5", *SHORT, "--objective", "misretrieval", "--divergence", "cosine"]
    assert run([*ATTACK, "--preset", "u-pgd", *given]) == 0
    said = recorded().settings
    assert (said["ball"], said["attack"]) == ("l2:0.5", "pgd:steps=2")
    assert said["objective"] == "misretrieval:divergence=cosine"
    assert said["source"] == "u-pgd (Petrov and Kwiatkowska 2022), changed"
    assert max(one.norm for one in recorded().moved) <= 0.5 * (1 + 1e-5)


@pytest.mark.slow
def test_an_objective_brings_the_views_it_needs():
    assert run([*ATTACK, *SHORT, "--objective", "pair"]) == 0
    assert len(recorded().moved) == 12


def test_a_failed_check_is_said_and_is_the_status(monkeypatch, capsys):
    bad = Replay(in_range=True, in_ball=True, largest_norm=0.05, code_difference=0.1, same_codes=False)
    monkeypatch.setattr("holdfast.attacks.attack_files.replay", lambda *_: bad)
    assert run([*ATTACK, *SHORT]) == 1
    assert says(capsys.readouterr().err, "their check")


def test_attacks_are_listed_with_their_sources(capsys):
    assert run(["list", "attacks"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and preset.source in shown for name, preset in PRESETS.items())
    assert "square" in shown
    assert "breakaway" not in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--preset", "upgd"], "Did you mean 'u-pgd'"),
        (["--attack", "pdg"], "Did you mean 'pgd'"),
        (["--attack", "pgd:step=5,steps=x"], "expected int, got 'x'"),
        (["--objective", "awya"], "Did you mean 'away'"),
        (["--divergence", "cosin"], "Did you mean 'cosine'"),
        (["--ball", "linf"], "ball 'linf' needs radius, as in linf:8/255"),
        (["--objective", "instance", "--divergence", "l2"], "instance takes no divergence"),
        (["--objective", "away:divergence=l1", "--divergence", "l2"], "--divergence l2"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--batch-size", "0"], "Invalid value for '--batch-size': Input should be greater than or equal to 1"),
        (["--images", "nowhere"], "no file or folder 'nowhere'"),
    ],
)
def test_mistakes_are_one_sentence(arguments, expected, capsys):
    assert run(overriding(ATTACK, arguments)) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("holdfast: ")
    assert expected in sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--divergence", "rank"], "rank has no gradient for adaptive to climb; use --attack square"),
        (["--limit", "1", "--preset", "t-pgd"], "there is only one image; add images"),
        (["--limit", "1", "--preset", "moco"], "needs the embeddings of other images, but there is one"),
        (["--limit", "1", "--preset", "rocl"], "needs at least 2 images in a batch"),
    ],
)
def test_what_does_not_fit_together_is_said(arguments, expected, capsys):
    assert run(overriding(ATTACK, arguments)) == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_that_holds_something_is_left_alone(capsys):
    Path("out").mkdir()
    Path("out/mine").write_text("dear")
    assert run([*ATTACK, *SHORT]) == 2
    assert says(capsys.readouterr().err, "out", "not empty", "--out")
    assert Path("out/mine").read_text() == "dear"


def test_a_file_in_the_way_is_one_sentence(capsys):
    Path("out").touch()
    assert run([*ATTACK, *SHORT]) == 2
    assert says(capsys.readouterr().err, "out", "File exists", "--out")


def test_an_interrupted_attack_stops_cleanly(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.attacks.adversarial.AdversarialImages.observe", interrupted)
    assert run([*ATTACK, *SHORT]) == 130
    error = capsys.readouterr().err.splitlines()
    assert says(error[-1], "stopped", "continues")
    assert not any("Traceback" in line for line in error)


@pytest.mark.slow
def test_a_radius_alone_is_that_of_a_linf_ball(capsys):
    assert run([*ATTACK, *SHORT, "--eps", "2/255"]) == 0
    assert recorded().settings["ball"] == "linf:2/255"
    assert run([*ATTACK[:-1], "other", *SHORT, "--eps", "2/255", "--ball", "l2:1"]) == 2
    assert says(capsys.readouterr().err, "eps", "ball")


def test_attacked_files_keep_one_ending():
    Path("own").mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8), dtype=np.uint8)
    for name, levels in zip(("a.png", "b.v2.jpeg", "c.png"), pixels, strict=True):
        Image.fromarray(levels).save(Path("own") / name)
    assert run(["attack", "builtin:digits-random", "--images", "own", "--out", "out", *SHORT]) == 0
    assert sorted(path.name for path in Path("out/images").iterdir()) == [
        "00000-a.png",
        "00001-b.v2.png",
        "00002-c.png",
    ]
