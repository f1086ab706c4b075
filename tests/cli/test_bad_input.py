"""Bad input of every kind: one sentence that says what to do, no traceback, and nothing computed is lost.

Status 2 where nothing can be measured, a recorded failure where one encoder cannot.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
from html import unescape
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from holdfast.cli.app import run
from holdfast.measure.store import load
from tests.cli import modules
from tests.facts import says
from tests.marks import rest_slow

SHORT = ["--only", "overlap", "--set", "overlap.samples=4", "--ball", "linf:0.1", "--set", "overlap.divergences=l2"]


class Runs:
    """A pickle that leaves a file behind if it is ever run."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.fixture(autouse=True)
def _bad_things(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file(modules.weights(modules.linear()), "good.safetensors")
    whole = np.random.default_rng(0).random((12, 1, 8, 8), dtype=np.float32)
    np.save("good.npy", whole)


def array(change) -> str:
    values = np.load("good.npy")
    np.save("bad.npy", change(values))
    return "bad.npy"


def put(values: np.ndarray, value: float) -> np.ndarray:
    values[3, 0, 1, 1] = value
    return values


def evaluate(capsys, images="good.npy", weights="good.safetensors", arch="linear", attack="u-fgsm", more=()):
    """Run and return the status and the lines of standard error but for progress."""
    named = ["evaluate", f"checkpoint:{weights}", "--arch", f"tests.cli.modules:{arch}", "--images", images]
    status = run([*named, *SHORT, "--set", f"overlap.attacks={attack}", "--out", "run", *more])
    lines = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line or "defect" in line for line in lines)
    # Progress, and the caution that so few images decide little, say nothing about the input.
    return status, [line for line in lines if not re.match(r" *\d+%  |.*Small sample:", line)]


def refused(capsys, **given) -> str:
    """Return the one sentence with which the command ends, before anything is computed."""
    status, lines = evaluate(capsys, **given)
    assert status == 2
    (sentence,) = lines
    assert not Path("run/results").exists()
    return sentence


def failed(capsys, **given) -> str:
    """Return the recorded reason of the one cell, which is also printed."""
    status, lines = evaluate(capsys, **given)
    assert status == 1
    results, (failure,) = load(Path("run"))
    assert results == []
    assert any(failure.reason in line for line in lines)
    assert failure.reason in unescape(Path("run/report.html").read_text())
    return failure.reason


def test_good_input_is_measured(capsys):
    assert evaluate(capsys) == (0, [])
    assert len(load(Path("run"))[0]) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x.reshape(12, 64), "with 1 channels, got shape (12, 64)"),
        (lambda x: x.repeat(2, 1), "got shape (12, 2, 8, 8)"),
        (lambda x: x[:0], "bad.npy holds no images"),
        (lambda x: x * 255, "must be finite and lie in [0, 1]"),
        (lambda x: x - 0.5, "divide by 255, do not normalise"),
        (lambda x: put(x, np.nan), "image 3 of bad.npy must be finite"),
        (lambda x: put(x, np.inf), "image 3 of bad.npy must be finite"),
        (lambda x: (x * 9).astype(np.int32), "got 'int32'"),
    ],
    ids=["flat", "channels", "empty", "range", "normalised", "nan", "infinite", "integers"],
)
def test_arrays_that_are_no_images(change, expected, capsys):
    assert expected in refused(capsys, images=array(change))


def test_a_truncated_array(capsys):
    Path("bad.npy").write_bytes(Path("good.npy").read_bytes()[:500])
    assert "bad.npy is truncated" in refused(capsys, images="bad.npy")


def test_a_single_image_has_no_pairs(capsys):
    assert says(failed(capsys, images=array(lambda x: x[:1])), "one image")


def test_duplicates_are_counted_out_loud(capsys):
    status, lines = evaluate(capsys, images=array(lambda x: np.concatenate([x, x[:3]])))
    assert status == 0
    assert says(lines[0], "3 of 15", "exact", "copies")
    assert "Remove duplicates" in lines[0]


def test_copies_of_one_image_say_nothing_about_the_encoder(capsys):
    status, lines = evaluate(capsys, images=array(lambda x: x[:1].repeat(6, 0)))
    assert status == 0
    assert says(lines[0], "5 of 6", "exact", "copies")
    (result,), _ = load(Path("run"))
    headline = [estimate.value for estimate in result.estimates if estimate.quantity in result.headline]
    assert headline
    assert all(map(isnan, headline))
    assert not any("useless" in warning for warning in result.findings.warnings)


def folder(good: int, bad: dict[str, bytes]) -> str:
    Path("photos").mkdir()
    pixels = np.load("good.npy")
    for row in range(good):
        Image.fromarray((pixels[row % 12, 0] * 255).astype(np.uint8)).save(f"photos/{row:02}.png")
    for name, content in bad.items():
        Path("photos", name).write_bytes(content)
    return "photos"


def test_a_few_unreadable_files_are_named_and_skipped(capsys):
    status, lines = evaluate(capsys, images=folder(40, {"zero.png": b"", "text.jpg": b"hello"}))
    assert status == 0
    assert lines[0].startswith("holdfast: warning: 2 of 42 images of photos cannot be read: ")
    assert "zero.png (zero bytes)" in lines[0]
    assert load(Path("run"))[0][0].images.count == 40


def test_many_unreadable_files_are_refused(capsys):
    sentence = refused(capsys, images=folder(2, {"zero.png": b"", "text.jpg": b"hello"}))
    assert says(sentence, "2 of 4", "photos")
    assert says(sentence, "repair", "remove")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_encoder_without_finite_codes(value, capsys):
    save_file(modules.weights(modules.linear(), **{"1.bias": value}), "bad.safetensors")
    assert "codes are NaN or infinite; check the weights" in failed(capsys, weights="bad.safetensors")


def test_a_constant_encoder_is_not_called_robust(capsys):
    save_file(modules.weights(modules.linear(), **{"1.weight": 0.0}), "bad.safetensors")
    assert says(failed(capsys, weights="bad.safetensors"), "same embedding")


def test_an_encoder_of_another_output_shape(capsys):
    save_file(modules.weights(modules.matrix()), "bad.safetensors")
    assert says(failed(capsys, weights="bad.safetensors", arch="matrix"), "one vector")


def test_batch_norm_left_in_training_mode_is_put_right(capsys):
    save_file(modules.weights(modules.norm()), "bad.safetensors")
    assert evaluate(capsys, weights="bad.safetensors", arch="norm") == (0, [])


def test_batch_norm_that_stays_in_training_mode(capsys):
    save_file(modules.weights(modules.norm()), "bad.safetensors")
    reason = failed(capsys, weights="bad.safetensors", arch="training")
    assert says(reason, "training mode")
    assert says(reason, "batch")


def test_an_encoder_without_gradients_names_the_attack_that_needs_none(capsys):
    assert "use the score-only attack 'square'" in failed(capsys, arch="stepped")
    assert evaluate(capsys, arch="stepped", attack="square:queries=9") == (0, [])


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_truncated_checkpoint(kind, capsys):
    if kind == "pt":
        torch.save(modules.weights(modules.linear()), "whole.pt")
    else:
        Path("whole.safetensors").write_bytes(Path("good.safetensors").read_bytes())
    Path(f"bad.{kind}").write_bytes(Path(f"whole.{kind}").read_bytes()[:300])
    sentence = refused(capsys, weights=f"bad.{kind}")
    assert "may be truncated: copy it again" in sentence
    assert len(sentence) < 250


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_would_run_code(zipped, capsys):
    if zipped:
        torch.save({"1.weight": Runs()}, "bad.pt")
    else:
        Path("bad.pt").write_bytes(pickle.dumps(Runs()))
    assert says(refused(capsys, weights="bad.pt"), "run code")
    assert not Path("owned").exists()
    pickle.loads(pickle.dumps(Runs()))
    assert Path("owned").exists(), "vacuous: that pickle does nothing"


def test_a_checkpoint_of_another_module(capsys):
    assert "good.safetensors" in refused(capsys, arch="norm")


@pytest.mark.parametrize(
    ("arch", "expected"),
    [("absent", "check the spelling"), ("", "package.module:factory")],
)
def test_an_architecture_that_is_not_there(arch, expected, capsys):
    assert expected in refused(capsys, arch=arch)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("def build(:", "cannot be imported (SyntaxError: invalid syntax"),
        ("x = undefined", "cannot be imported (NameError: name 'undefined' is not defined); fix the module mine"),
        ("exit()", "cannot be imported (SystemExit: None)"),
        ("build = lambda: exit(0)", "failed: SystemExit: 0"),
    ],
)
def test_an_architecture_that_cannot_be_built(content, expected, capsys, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    Path("mine.py").write_text(content)
    for command in (["evaluate", *SHORT], ["attack"], ["certify", "--eps", "1/255"], ["doctor"]):
        where = [] if command == ["doctor"] else ["--out", "run"]
        named = ["checkpoint:good.safetensors", "--arch", "mine:build", "--images", "good.npy"]
        assert run([*command, *named, *where]) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert expected in sentence


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("integers", "must be floating-point embeddings, got torch.int64"),
        ("truths", "must be floating-point embeddings, got torch.bool"),
        ("complexes", "must be floating-point embeddings, got torch.complex64"),
        ("nothing", "must be one vector per image, shape (4, d), got (4, 0)"),
        ("sparse", "fails on inputs of shape (4, 1, 8, 8): "),
        ("halving", "differ from call to call"),
    ],
)
def test_encoders_that_answer_something_else_are_unfit_for_every_command(arch, expected, capsys):
    assert expected in failed(capsys, arch=arch)
    named = ["checkpoint:good.safetensors", "--arch", f"tests.cli.modules:{arch}", "--images", "good.npy"]
    for command in (["attack", "--out", "a"], ["certify", "--out", "c", "--eps", "1/255"]):
        assert run([*command, *named]) == 2
        assert f"is not fit to be {command[0].removesuffix('ify')}" in (said := capsys.readouterr().err)
        assert expected in said
    assert run(["doctor", *named]) == 1
    captured = capsys.readouterr()
    assert "failed" in captured.out
    assert not captured.err


@pytest.mark.parametrize("value", [float("nan"), 2.0])
def test_one_bad_image_of_many_does_not_pass_the_doctor(value, capsys):
    bad = array(lambda values: put(np.concatenate([values, values]), value))
    named = ["checkpoint:good.safetensors", "--arch", "tests.cli.modules:linear", "--images"]
    assert run(["doctor", *named, "good.npy"]) == 0
    assert "12 images were read (at most 1,000 are)" in capsys.readouterr().out
    assert run(["doctor", *named, bad]) == 2
    assert says(capsys.readouterr().err, "image 3", "bad.npy", "[0, 1]")


def test_an_encoder_that_ends_the_program_does_not_end_it_in_silence(capsys):
    status, lines = evaluate(capsys, arch="exits")
    assert status == 2
    assert lines[-1].endswith("and ended the command; take that out of it")


@pytest.mark.slow
@pytest.mark.parametrize("precision", rest_slow(["float16", "bfloat16"]))
def test_half_precision_serves_every_command(precision, capsys):
    assert evaluate(capsys, more=["--precision", precision]) == (0, [])
    named = ["checkpoint:good.safetensors", "--arch", "tests.cli.modules:linear", "--images", "good.npy"]
    named += ["--precision", precision]
    assert run(["attack", *named, "--limit", "3", "--attack", "u-fgsm", "--out", "a"]) == 0
    smoothing = ["--ball", "l2:0.1", "--method", "smoothing:selection=3000,copies=3000"]
    assert run(["certify", *named, "--limit", "3", *smoothing, "--out", "c"]) == 0
    capsys.readouterr()
    assert run(["certify", *named, "--limit", "3", "--eps", "1/255", "--out", "d"]) == 0
    assert f"executed in {precision}, sums in float32" in Path("d", "certify.json").read_text()
    assert run(["doctor", *named]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "is not valid TOML (maximum recursion depth exceeded"),
        ("seed = " + "9" * 5000, "is not valid TOML (Exceeds the limit"),
    ],
)
def test_configurations_that_python_cannot_read(content, said, capsys):
    Path("bad.toml").write_text(content)
    assert run(["evaluate", "--config", "bad.toml"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert said in sentence


def test_one_bad_encoder_costs_the_others_nothing(capsys):
    save_file(modules.weights(modules.linear(), **{"1.bias": float("nan")}), "bad.safetensors")
    status, lines = evaluate(capsys, weights="bad.safetensors", more=["--baselines", "pixels"])
    results, failures = load(Path("run"))
    assert status == 1
    assert [result.encoder.name for result in results] == ["pixels"]
    assert [failure.encoder for failure in failures] == ["bad.safetensors"]
    assert says(lines[-1], "rerun", "command")
    os.replace("good.safetensors", "bad.safetensors")
    assert evaluate(capsys, weights="bad.safetensors", more=["--baselines", "pixels"])[0] == 0
    assert load(Path("run"))[1] == []


def test_a_folder_that_cannot_be_written(capsys):
    Path("file").touch()
    assert run(["evaluate", "builtin:digits-random", *SHORT, "--out", "file/run"]) == 2
    assert "cannot write file/run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reference", "flags"),
    [("onnx:{}", []), ("exported:{}", []), ("checkpoint:{}", ["--arch", "tests.cli.modules:linear"])],
)
def test_what_the_system_refuses_is_one_sentence(reference, flags, capsys):
    assert run(["doctor", reference.format("a" * 5000), *flags]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("holdfast: cannot use 'aaaa")
    assert sentence.endswith("File name too long; check path, permissions and free space")


def test_an_unfit_encoder_is_not_attacked(capsys):
    save_file(modules.weights(modules.linear(), **{"1.weight": 0.0}), "bad.safetensors")
    bad = ["checkpoint:bad.safetensors", "--arch", "tests.cli.modules:linear"]
    assert run(["attack", *bad, "--images", "good.npy", "--out", "out"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("holdfast: bad.safetensors is not fit to be attacked: All images have the same embedding")
    )
    assert run(["doctor", *bad, "--images", "good.npy"]) == 1
    assert "failed" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["attack", "certify"])
def test_a_ball_of_everything_is_refused_before_anything_is_computed(command, tmp_path, capsys):
    given = [command, "builtin:digits-robust", "--images", "builtin:digits", "--eps", "8", "--limit", "4"]
    assert run([*given, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert says(said, "8/255", "8", "radii")
    assert "codes" not in said
    assert not list((tmp_path / "out").glob("shards/*"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", ","], "--only names nothing: ','"),
        (["--only", ""], "--only is empty, as an unset variable would be"),
        (
            ["--only", "breakaway", "--set", "breakaway.samples=0"],
            "breakaway: samples",
        ),
    ],
)
def test_what_asks_for_nothing_is_refused(flags, said, tmp_path, capsys):
    given = ["evaluate", "builtin:digits-robust", "--images", "builtin:digits", "--out", str(tmp_path / "out")]
    assert run([*given, *flags]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")]
)
def test_no_memory_left_is_no_defect(error, monkeypatch, capsys):
    def fail(arguments):
        raise error

    monkeypatch.setattr("holdfast.cli.app._run_command", fail)
    assert run(["doctor", "builtin:digits-robust"]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("holdfast: memory ran out (")
    assert "ulimit -v" in sentence
