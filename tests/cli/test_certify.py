"""``holdfast certify``: a status for every image, witnesses that replay, and one sentence for what cannot be bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from holdfast import data
from holdfast.bounds.certificates import CertificateRecord
from holdfast.bounds.methods import base
from holdfast.cli.app import run
from holdfast.encoders import load
from holdfast.run.progress import Shown
from tests.bounds.evaluations.known import Boast
from tests.cli.modules import sorted_pixels, weights, wide
from tests.cli.overriding import overriding
from tests.facts import says

CERTIFY = ["certify", "builtin:digits-contrastive", "--images", "builtin:digits", "--limit", "6", "--out", "out"]
QUICK = ["--attack", "adaptive:steps=10,restarts=1", "--negatives", "3"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def recorded(folder: str = "out") -> CertificateRecord:
    return CertificateRecord.model_validate_json(Path(folder, "certify.json").read_text())


def test_small_changes_are_certified(capsys):
    assert run([*CERTIFY, *QUICK, "--eps", "0.02"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.endswith(": CERTIFIED") for line in lines) == 6
    counted = "6 CERTIFIED, 0 FALSIFIED, 0 UNKNOWN in linf:0.02 by crown, each against 3 other images"
    assert lines[-2] == f"{counted}; contradictions: 0"
    assert not Path("out/witnesses").exists()
    assert all(found.bound > 0 and found.witness is None for found in recorded().certificates)
    assert 0 < float(recorded().provenance["seconds_per_pair"]) < 60


def test_every_pair_has_its_bound_and_what_attacks_reached(capsys):
    assert run([*CERTIFY, *QUICK, "--eps", "0.1"]) == 0
    record = recorded()
    encoder = load("builtin:digits-contrastive")
    images = data.load("builtin:digits", encoder.domain)
    units = torch.nn.functional.normalize(encoder.module(images.pixels(range(len(images)))).double()).detach()
    for found in record.certificates:
        assert len({pair.negative for pair in found.pairs}) == 3
        row, others = images.ids.index(found.id), [images.ids.index(pair.negative) for pair in found.pairs]
        clean = ((units[row] - units[others]) * encoder.module(images.pixels([row])).double()).sum(1).tolist()
        for pair, value in zip(found.pairs, clean, strict=True):
            assert pair.bound <= pair.attacked <= value + 1e-5, "a bound is below an attack, an attack below the image"
        assert (found.bound, found.attacked) in [(pair.bound, pair.attacked) for pair in found.pairs]
        assert (found.status == "CERTIFIED") == all(pair.bound > 0 for pair in found.pairs)
    assert {found.status for found in record.certificates} == {"CERTIFIED", "FALSIFIED", "UNKNOWN"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("source", ["exported", "onnx"])
def test_exports_for_any_batch_are_certified_and_evaluated(source, capsys):
    if source == "onnx":
        pytest.importorskip("onnxscript")
    module, pixels = load("builtin:digits-contrastive").module, torch.rand(2, 1, 8, 8)
    dynamic: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim("b")},)}
    if source == "onnx":
        torch.onnx.export(module, (pixels,), "e", dynamo=True, verbose=False, external_data=False, **dynamic)
    else:
        torch.export.save(torch.export.export(module, (pixels,), **dynamic), Path("e"))
    given = [f"{source}:e{'?trust=yes' * (source == 'exported')}", *CERTIFY[2:]]
    assert run(["certify", *given, *QUICK, "--eps", "0.02"]) == 0
    assert "6 CERTIFIED, 0 FALSIFIED, 0 UNKNOWN" in capsys.readouterr().out
    assert run(["evaluate", *given[:-1], "run", "--only", "displacement"]) == 0


@pytest.mark.slow
def test_witnesses_refute_by_themselves(capsys):
    assert run([*CERTIFY, *QUICK, "--ball", "linf:0.2", "--precision", "float64"]) == 0
    said, record = capsys.readouterr().out, recorded()
    falsified = [found for found in record.certificates if found.status == "FALSIFIED"]
    assert falsified
    encoder = load("builtin:digits-contrastive").to("cpu", torch.float64)
    for found in falsified:
        assert f"{found.id}: FALSIFIED ({found.witness})" in said
        pixels = load_file(Path("out") / str(found.witness))
        assert (pixels["witness"] - pixels["clean"]).abs().max() <= 0.2 + 1e-12
        clean, moved, other = (encoder(pixels[name][None]) for name in ("clean", "witness", "other"))
        assert torch.cosine_similarity(moved, other) > torch.cosine_similarity(moved, clean)
        assert found.replayed == pytest.approx(found.attacked, rel=1e-6)
        assert Path("out", str(found.witness)).with_suffix(".png").is_file()


@pytest.mark.slow
def test_what_is_neither_says_why(capsys):
    assert run([*CERTIFY, *QUICK, "--eps", "0.1", "--method", "interval"]) == 0
    unknown = [found for found in recorded().certificates if found.status == "UNKNOWN"]
    assert unknown
    assert says(unknown[0].reason, "negatives", "confuses")
    assert f"{unknown[0].id}: UNKNOWN ({unknown[0].reason})" in capsys.readouterr().out


def test_contradictions_are_loud(capsys, monkeypatch):
    monkeypatch.setattr(base, "methods", lambda: {"boast": Boast})
    assert run([*CERTIFY, *QUICK, "--eps", "0.4", "--method", "boast"]) == 1
    captured = capsys.readouterr()
    assert "contradictions: 18" in captured.out
    assert "trust no certificate" in captured.err
    assert recorded().contradictions == 18


def test_an_operation_without_bounds_is_named(capsys):
    torch.save(weights(sorted_pixels()), "sorted.pt")
    given = ["checkpoint:sorted.pt", "--arch", "tests.cli.modules:sorted_pixels"]
    assert run(["certify", *given, *CERTIFY[2:], "--eps", "0.1"]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "'sort'" in sentence
    assert "cannot be bounded" in sentence


def test_a_network_too_large_for_bounds_is_refused_before_it_is_traced(capsys, monkeypatch):
    monkeypatch.setattr(torch.export, "export", None)  # a call would be a defect, and said as one
    torch.save(weights(wide()), "wide.pt")
    given = ["checkpoint:wide.pt", "--arch", "tests.cli.modules:wide"]
    assert run(["certify", *given, *CERTIFY[2:], "--eps", "0.1"]) == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert "60,000 nonlinear entries" in sentence
    assert "--method smoothing" in sentence


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], "--eps 8/255 or as --ball l2:0.5"), (["--eps", "0.1", "--ball", "l2:1"], "eps and ball")],
)
def test_the_ball_is_given_once(capsys, given, expected):
    assert run([*CERTIFY, *given]) == 2
    assert expected in capsys.readouterr().err


def test_a_folder_in_use_is_refused(capsys):
    Path("out").mkdir()
    Path("out/mine").touch()
    assert run([*CERTIFY, "--eps", "0.1"]) == 2
    assert "not empty" in capsys.readouterr().err


SMOOTHED = ["--ball", "l2:0.1", "--negatives", "5", "--method", "smoothing:sigma=0.15,selection=200,copies=1000"]


def test_smoothing_certifies_noisy_copies_and_says_before_what_it_can(capsys):
    assert run([*CERTIFY, *SMOOTHED]) == 0
    said = capsys.readouterr()
    assert says(said.err, "2 radii", "1,400", "650", "0.362", "certified")
    assert says(said.err, "2 x 200", "minute", "copies")
    lines = said.out.splitlines()
    found = recorded().certificates
    certified = [one for one in found if one.status == "CERTIFIED"]
    assert len(found) == 6
    assert len(certified) > 3, "vacuous"
    assert all(0 < one.bound < 0.3 and says(one.reason, "after every change") for one in certified)
    assert f"{len(certified)} CERTIFIED, 0 FALSIFIED" in lines[-3]
    assert "with confidence 0.999" in lines[-2]
    assert "0.994" in lines[-2], "six images jointly"
    # Another radius takes other numbers of copies to decide, and so a folder of its own.
    assert run(overriding(CERTIFY, ["--out", "wide", "--ball", "l2:0.35", *SMOOTHED[2:]])) == 0
    assert sum(one.status == "CERTIFIED" for one in recorded("wide").certificates) < len(certified)


def test_copies_that_choose_a_centre_are_not_drawn_and_certify_the_same(capsys):
    assert run([*CERTIFY, *SMOOTHED]) == 0
    assert run(overriding(CERTIFY, [*SMOOTHED[:-1], "smoothing:sigma=0.15,copies=1000", "--out", "few"])) == 0
    assert says(capsys.readouterr().err, "1,002", "252", "copies")
    assert recorded("few").certificates == recorded().certificates


def test_progress_goes_on_within_an_image(monkeypatch):
    told = list[tuple[str, float, float]]()
    monkeypatch.setattr(Shown, "__call__", lambda _, *progress: told.append(progress))
    assert run([*CERTIFY, *SMOOTHED, "--batch-size", "1"]) == 0
    inside = [progress for progress in told if progress[0].endswith("copies of the next")]
    assert says(inside[0][0], "0 of 6", "32 copies", "digits-contrastive", "copies")
    assert all(0 <= share <= 1 and left >= 0 for _, share, left in inside)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--eps", "0.1", "--method", "smoothing"], "an l2 ball, got linf:0.1"),
        (["--ball", "l2:0.9", "--method", "smoothing:copies=100"], "it takes at least"),
        (["--ball", "l2:0.1", "--method", "smoothing:sigma=0"], "sigma must be positive"),
        (["--ball", "l2:0.1", "--method", "smoothing:steps=9"], "'steps'"),
    ],
)
def test_smoothing_refuses_what_it_cannot_certify(change, said, capsys):
    assert run([*CERTIFY, *change]) == 2
    assert said in capsys.readouterr().err


def test_smoothing_certifies_nothing_of_copies_of_one_image(capsys):
    np.save("same.npy", np.full((3, 8, 8), 0.5, dtype=np.float32))
    assert run(["certify", "builtin:digits-contrastive", "--images", "same.npy", "--out", "out", *SMOOTHED]) == 0
    assert {one.status for one in recorded().certificates} == {"UNKNOWN"}
    assert all("exact copies" in one.reason for one in recorded().certificates)
