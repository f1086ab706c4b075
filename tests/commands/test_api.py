"""Holdfast from Python: objects and references give the same numbers, runs are kept or go, mistakes are named."""

from __future__ import annotations

import builtins
import gc
import re
import sys
from inspect import getdoc, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.core.balls import BALLS, L2, Linf
from holdfast.core.divergences import DIVERGENCES
from holdfast.core.errors import HoldfastError
from holdfast.core.files import sealed, unsealed
from holdfast.encoders import builtin
from holdfast.encoders.baseline import raw_pixels
from holdfast.report.contents import Contents
from holdfast.report.overview.first_screen import lines
from holdfast.run import catalog
from holdfast.run import inputs as given
from holdfast.run.inputs import TOUR, select
from holdfast.run.request import Request
from holdfast.run.run import Run
from tests.cli.stored import breakaway, failure
from tests.facts import refused, says, warned
from tests.tiny import encoder, images

FEW: dict[str, Any] = {
    "only": "overlap",
    "limit": 24,
    "settings": {"overlap": {"attacks": [hf.GradientAttack(steps=3)], "samples": 12, "divergences": "l2"}},
}


@pytest.fixture(scope="module")
def run() -> EvaluatedRun:
    """One encoder by reference and one at hand."""
    robust = hf.load_encoder("builtin:digits-robust")
    return hf.evaluate([robust, "builtin:digits-random"], TOUR, eps=["8/255", 0.1], **FEW)


def test_every_evaluation_attack_ball_and_divergence_is_a_public_name() -> None:
    for kinds in (catalog.evaluations(), catalog.attacks(), BALLS, DIVERGENCES):
        for kind in kinds.values():
            if kind.__module__.startswith("holdfast."):
                assert getattr(hf, kind.__name__) is kind
                assert kind.__name__ in dir(hf)


def test_errors_that_public_functions_name_can_be_caught_from_holdfast() -> None:
    texts = [getdoc(getattr(hf, name)) or "" for name in hf.__all__]
    raised = {
        name for text in texts for name in re.findall(r"^ +(\w+Error): ", text.partition("Raises:")[2], re.MULTILINE)
    }
    assert {"HoldfastError", "AgreementLostError"} <= raised - set(dir(builtins)) <= set(hf.__all__)


def test_defaults_are_those_of_the_command_line() -> None:
    known = Request()
    for name, parameter in signature(hf.evaluate).parameters.items():
        if name in type(known).model_fields and parameter.default is not parameter.empty:
            default = getattr(known, name)
            assert parameter.default == default or (parameter.default, default) == (None, {}), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("suite", "full"),
        ("only", ("overlap", "breakaway")),
        ("eps", (0.1, "8/255")),
        ("ball", (Linf(0.1), L2(0.5))),
        ("baselines", ("pixels",)),
        ("limit", 3),
        ("seed", 4),
        ("attack_seed", 5),
        ("settings", {"overlap": {"samples": 6}}),
        ("arch", ("package.module:factory",)),
        ("size", 7),
        ("trust_remote_code", True),
        ("black_box", True),
        ("device", "cpu:0"),
        ("precision", "float64"),
        ("batch_size", 8),
        ("budget", 9.0),
        ("cluster", "local"),
        ("workers", 2),
        ("rehash", True),
    ],
)
def test_every_keyword_reaches_the_request_under_its_name(
    name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    class StoppedError(Exception):
        pass

    def noted(run: Run, request: Request, *_: Any) -> None:
        requests.append(request)
        raise StoppedError

    monkeypatch.setattr(Run, "answer", noted)
    with pytest.raises(StoppedError):
        hf.evaluate(encoder(), images(), **{name: value})
    assert getattr(requests[0], name) == value != getattr(Request(), name)


def test_without_arguments_the_built_in_encoders_are_toured() -> None:
    run = hf.evaluate(only="geometry", limit=12, suite="quick")
    assert {result.encoder.name for result in run} == set(builtin.TOUR) < set(builtin.names())
    assert {result.images.name for result in run} == {TOUR}


def test_checkpoints_take_what_builds_them_and_others_refuse_it() -> None:
    with refused(hf.HoldfastError, "changes", "checkpoint"):
        hf.evaluate(encoder(), images(), arch="package.module:factory")
    with pytest.raises(hf.HoldfastError, match="tiny"):
        hf.doctor(encoder(), size=8)


def test_encoders_at_hand_and_by_reference_give_the_same_numbers(run: EvaluatedRun) -> None:
    named = hf.evaluate("builtin:digits-robust", hf.load_images(TOUR, hf.load_encoder("builtin:digits-robust")),
                        eps=["8/255", 0.1], **FEW)  # fmt: skip
    assert named["overlap"].findings == run["overlap", "digits-robust"].findings
    assert named["overlap"].findings != run["overlap", "digits-random"].findings, "vacuous fixture"


def test_a_run_says_what_it_holds(run: EvaluatedRun) -> None:
    assert len(run.results) == len(list(run)) == 2
    assert run.failures == ()
    said = repr(run)
    assert "2 results, 0 failures" in said
    (screen,) = Contents(run.results, ()).first_screens
    assert all(line in said for line in lines(screen, most=9))
    assert all(row.kind.short in said for row in screen.rows)
    assert "digits-random" in run._repr_html_()


def test_the_table_has_a_row_for_each_estimate(run: EvaluatedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = run.table()
    assert len(rows) == sum(len(result.estimates) for result in run.results)
    risk = run["overlap", "digits-robust"].estimate("overlap_risk", ball="linf:0.1", attack="pgd:steps=3")
    wanted = {"encoder": "digits-robust", "quantity": "overlap_risk", "ball": "linf:0.1", "attack": "pgd:steps=3"}
    (row,) = [row for row in rows if wanted.items() <= row.items()]
    assert (row["value"], row["low"], row["high"], row["n"]) == (risk.value, risk.low, risk.high, risk.n)


def test_the_table_begins_with_the_first_screen(run: EvaluatedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    (screen,) = Contents(run.results, ()).first_screens
    shown = [(row.title, cell.encoder, e.value) for row in screen.rows for cell in row.cells for e in cell.estimates]
    rows = run.table()
    assert shown
    assert [(row["row"], row["encoder"], row["value"]) for row in rows[: len(shown)]] == shown
    assert {row["row"] for row in rows[len(shown) :]} == {""}


def test_the_table_is_a_data_frame_where_pandas_is_installed(run: EvaluatedRun) -> None:
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.table(), pandas.DataFrame)


def test_runs_are_compared_and_checked(run: EvaluatedRun, tmp_path: Path) -> None:
    comparison = hf.compare(run)
    assert comparison == hf.compare([run.folder])
    assert comparison.encoders == ("digits-random", "digits-robust")
    assert repr(comparison).startswith("Comparison of digits-random, digits-robust: ")
    kept, broken = (hf.check(run, f"overlap_risk@0.1<={bound}") for bound in (1, 0))
    assert all(answer.passed for answer in kept)
    assert not all(answer.passed for answer in broken)
    with warned(hf.HoldfastWarning, "better", "encoders"):
        hf.check([run], ["overlap_risk@0.1>=0.5"])
    with pytest.raises(hf.HoldfastError, match="holds no run"):
        hf.compare(tmp_path)


def test_a_part_of_runs_is_compared_and_becomes_a_page(run: EvaluatedRun, tmp_path: Path) -> None:
    everything, part = hf.compare(run), hf.compare(run, only="overlap", where="linf:0.1")
    assert 0 < len(part.contests) < len(everything.contests)
    assert {contest.conditions["ball"] for contest in part.contests} == {"linf:0.1"}
    with pytest.raises(hf.HoldfastError, match=r"breakaway.*overlap"):
        hf.compare(run, only="breakaway")
    part.page(tmp_path / "page.html")
    assert "digits-robust" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_answers_of_gates_become_a_table(run: EvaluatedRun, tmp_path: Path) -> None:
    hf.check(run, "overlap_risk@0.1<=1", markdown=tmp_path / "check.md")
    assert (tmp_path / "check.md").read_text(encoding="utf-8").startswith("### Holdfast: 1 gate passed")


def test_what_a_run_holds_and_what_can_go(tmp_path: Path) -> None:
    few = {**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}}
    run = hf.evaluate(encoder(), images(), **few, out=tmp_path / "run")
    (inventory,) = hf.runs(run)
    assert (inventory.encoders, inventory.finished) == (("tiny",), 1)
    assert hf.runs(tmp_path) == hf.runs(tmp_path / "run"), "a folder above"
    removables = hf.clean(run)
    assert sum(removable.bytes for removable in removables) > 0
    assert hf.clean(run) == removables, "nothing was removed"
    hf.clean(run, yes=True)
    assert hf.clean(run) == ()
    assert hf.runs(run)[0].finished == 1


def test_an_encoder_at_hand_is_examined_without_loading_it() -> None:
    named = {check.name: check.status for check in hf.doctor("builtin:digits-robust", TOUR)}
    robust = hf.load_encoder("builtin:digits-robust")
    at_hand = {check.name: check.status for check in hf.doctor(robust, hf.load_images(TOUR, robust, limit=4))}
    assert named == {"loads the same twice": "ok", **at_hand}
    assert at_hand["can be certified"] == "ok"


def test_the_doctor_looks_at_the_pixels_of_all_images() -> None:
    pixels = torch.rand(28, 1, 2, 2)
    assert says(hf.doctor(encoder(), pixels)[0].sentence, "28 images", "1,000", "[0, 1]", "of 4")
    for row in range(28):
        bad = pixels.clone()
        bad[row, 0, 1, 1] = float("nan")
        with pytest.raises(HoldfastError, match=f"images '{row}' ... must be finite"):
            hf.doctor(encoder(), bad)


def test_the_report_is_written_where_it_is_wanted(run: EvaluatedRun, tmp_path: Path) -> None:
    page = run.report(tmp_path / "page")
    assert page == tmp_path / "page" / "report.html"
    assert "digits-robust" in page.read_text()


def test_a_run_leaves_its_report_in_the_folder_that_was_named(tmp_path: Path) -> None:
    """Of a second, however short it was, and of one that had nothing left to compute."""
    asked = {**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}, "out": tmp_path / "run"}
    first = hf.evaluate(encoder(), images(), **asked)
    page = tmp_path / "run" / "report.html"
    text = page.read_text()
    assert first.report() == page
    page.unlink()
    hf.evaluate(encoder(), images(), **asked)
    assert page.read_text() == text
    with pytest.raises(HoldfastError, match="adaptive, apgd, autoattack, fab, nes, pgd"):
        hf.evaluate(encoder(), images(), **{**asked, "out": tmp_path / "b", "settings": {"overlap": {"attacks": "x"}}})
    assert not (tmp_path / "b").exists(), "nothing was computed"


def test_a_run_without_a_folder_leaves_nothing_behind() -> None:
    run = hf.evaluate(encoder(), images(), **{**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}})
    folder = run.folder
    assert folder.is_dir()
    del run
    gc.collect()
    assert not folder.exists()


def test_a_run_with_a_folder_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        **FEW,
        "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}},
        "out": tmp_path / "run",
    }
    first = hf.evaluate(encoder("mine"), images().pixels(range(20)), **asked)
    monkeypatch.setattr("holdfast.run.computing.compute", None)  # nothing is computed again
    again = hf.evaluate(encoder("mine"), images().pixels(range(20)), **asked)
    assert again.results == first.results
    assert all(answer.passed for answer in hf.check(tmp_path / "run", "overlap_risk@0.05<=1")), "none is unfinished"
    asked = Request.model_validate_json(unsealed((tmp_path / "run" / "run.json").read_bytes())).model_dump()
    assert (asked["encoders"], asked["images"]) == (("python:mine",), "python:images")


def test_an_encoder_that_was_never_reached_is_unfinished(tmp_path: Path) -> None:
    asked: dict[str, Any] = {**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}, "out": tmp_path}
    hf.evaluate(encoder("mine"), images(), **asked)
    file = tmp_path / "run.json"
    file.write_bytes(sealed(unsealed(file.read_bytes()).replace(b'"python:mine"', b'"python:mine", "python:other"')))
    answers = hf.check(tmp_path, "overlap_risk@0.05<=1")
    assert {answer.encoder: answer.passed for answer in answers} == {"mine": True, "python:other": False}


def test_limits_choose_the_same_images_at_hand_and_by_reference() -> None:
    robust = hf.load_encoder("builtin:digits-robust")
    named = hf.load_images(TOUR, robust, limit=7, seed=3)
    assert select(hf.load_images(TOUR, robust), robust.domain, limit=7, seed=3).ids == named.ids


def test_two_encoders_from_two_sources_keep_their_own_names() -> None:
    mine, theirs = raw_pixels(encoder().domain), encoder("pixels")
    run = hf.evaluate([mine, theirs], images(), **{**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}})
    assert [result.encoder.name for result in run] == [mine.source, "pixels"]
    assert mine.name == "pixels"


def test_failures_are_said_and_kept() -> None:
    with warned(hf.HoldfastWarning, "1 of 1", "run.failures", "overlap"):
        run = hf.evaluate(encoder(), images(1), only="overlap")
    assert run.results == ()
    with refused(hf.HoldfastError, "overlap", "result"):
        _ = run["overlap"]
    assert "no result" in repr(run)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "breakaway",
            r"2 encoders have a result of breakaway, name one as in run\['breakaway', 'a'\]; there are: a, b",
        ),
        (("breakaway", "c"), r"breakaway of c has no result: it is broken"),
        (("breakaway", "aa"), r"Did you mean 'a'\? Known: a, b, c"),
        ("breakway", r"Did you mean 'breakaway'"),
    ],
)
def test_what_is_not_there_is_named(key: str | tuple[str, str], said: str, tmp_path: Path) -> None:
    run = EvaluatedRun((breakaway("a"), breakaway("b")), (failure("c"),), tmp_path)
    assert run["breakaway", "b"].encoder.name == "b"
    with pytest.raises(hf.HoldfastError, match=said):
        _ = run[key]


@pytest.mark.parametrize(
    ("encoders", "on", "asked", "said"),
    [
        (encoder(), torch.full((4, 1, 2, 2), 3.0), {}, r"must be finite and lie in \[0, 1\]"),
        (encoder(), torch.zeros(4, 1, 3, 3), {}, r"must be of shape \(batch, 1, 2, 2\)"),
        (
            encoder(),
            "embeddings:",
            {},
            "embeddings:",
        ),
        ([encoder(), encoder()], images(), {}, r"two of the encoders are called alike \(tiny, tiny\)"),
        (encoder(), images(), {"only": ["overlp"]}, r"Did you mean 'overlap'"),
        (encoder(), images(), {"eps": 0.1, "ball": hf.L2(1.0)}, r"eps and ball"),
        (encoder(), images(), {"cluster": "ranks"}, r"ranks meet in a folder that all of them see; name it as out"),
        (encoder(), images(), {"size": 4}, "size.*tiny"),
        (encoder(), images(), {"trust_remote_code": True}, "trust_remote_code.*tiny"),
        (encoder(), images(), {"limit": 0}, r"limit: input should be greater than or equal to 1, got 0"),
    ],
)
def test_mistakes_are_named(encoders: Any, on: Any, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(hf.HoldfastError, match=said):
        hf.evaluate(encoders, on, **asked)


def test_what_is_no_encoder_and_no_images_is_named() -> None:
    with refused(hf.HoldfastError, "Encoder", "Flatten"):
        given.checked(nn.Flatten())
    with refused(hf.HoldfastError, "folder", "ndarray", "torch.as_tensor"):
        given.reference_or_images(np.zeros((2, 1, 2, 2)))


untyped: Any = hf


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: untyped.transformed("photos/", "blur:1"),
            "Images are transformed, or a tensor in .*, got str; load_images",
        ),
        (lambda: untyped.transformed(images(), 3), "fog-c:3.*got 3"),
        (lambda: untyped.corrupt(images(), 3, "out"), "fog-c:3.*got 3"),
        (lambda: untyped.attack(encoder(), images(), preset=None), "preset.*None"),
        (
            lambda: untyped.attack(encoder(), images(), divergence=3),
            "divergence must be .* got 3",
        ),
        (
            lambda: untyped.attack(encoder(), images(), cluster=3),
            "cluster is text: auto, local, ranks or an address, got 3",
        ),
        (lambda: untyped.attack(encoder(), images(), workers="x"), "workers must be .* got 'x'"),
        (lambda: untyped.parity(encoder(), encoder(), images(), k="a"), "k must be a whole number, got 'a'"),
        (lambda: untyped.parity(encoder(), encoder(), images(), radii=0.5), "radii must be a whole number, got 0.5"),
    ],
)
def test_values_of_another_kind_are_one_sentence(call: Any, said: str, unchecked: None) -> None:
    with pytest.raises(hf.HoldfastError, match=said):
        call()


def test_tensors_are_transformed_as_images_are() -> None:
    pixels = torch.rand(3, 1, 8, 8)
    changed = hf.transformed(pixels, "brightness:0.1")
    assert torch.equal(changed.pixels([0, 1, 2]), hf.transformed(hf.Images(pixels), "brightness:0.1").pixels([0, 1, 2]))
    assert not torch.equal(changed.pixels([0, 1, 2]), pixels)


def test_progress_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {**FEW, "settings": {"overlap": {"attacks": "u-fgsm", "samples": 4}}}
    hf.evaluate(encoder(), images(), **asked, progress=True)
    assert "tiny: codes" in capsys.readouterr().err
    hf.evaluate(encoder(), images(), **asked)
    assert capsys.readouterr().err == "", "nobody looks at a terminal"


def test_attacks_move_codes_inside_their_ball() -> None:
    found = hf.attack(encoder(), images(5), "linf:0.1", attack="u-fgsm")
    assert found.ids == tuple(f"image{k}" for k in range(5))
    assert bool((found.gain > found.clean_gain).all())
    assert float((found.attacked - found.clean).abs().max()) <= 0.1 + 1e-6
    weak, same = hf.attack([encoder(), encoder()], images(5), hf.Linf(0.1), attack=hf.GradientAttack(steps=1), limit=3)
    assert torch.equal(weak.attacked, same.attacked)
    assert len(weak.ids) == 3


def test_encoders_are_named_by_keyword_as_well() -> None:
    by_place = hf.attack(encoder(), images(5), "linf:0.1", attack="u-fgsm")
    by_name = hf.attack(images=images(5), ball="linf:0.1", attack="u-fgsm", encoder=encoder())
    assert torch.equal(by_place.attacked, by_name.attacked)
    several = hf.certify(images=images(4), ball="linf:0.9", negatives=2, attack="u-fgsm", encoder=[encoder()])
    assert [certified.counted("FALSIFIED") for certified in several] == [4]
    with pytest.raises(TypeError, match="argument: 'encoder'"):
        hf.attack(images=images(5))  # type: ignore[call-overload]


def test_objectives_that_need_views_get_them() -> None:
    found = hf.attack(
        hf.load_encoder("builtin:digits-robust"), torch.rand(3, 1, 8, 8), "linf:0.1", objective="pair", attack="u-fgsm"
    )
    assert len(found.ids) == 6


def test_certificates_say_what_is_known(tmp_path: Path) -> None:
    narrow = hf.certify(encoder(), images(4), hf.Linf(1e-4), negatives=2, attack="u-fgsm")
    assert narrow.counted("CERTIFIED") == 4
    (wide,) = hf.certify([encoder()], images(4), "linf:0.9", negatives=2, attack="u-fgsm")
    assert wide.counted("FALSIFIED") == 4
    assert all(one.witness is None for one in wide.certificates), "their pixels were not kept"
    kept = hf.certify(encoder(), images(4), "linf:0.9", negatives=2, attack="u-fgsm", out=tmp_path / "kept")
    assert all((tmp_path / "kept" / str(one.witness)).is_file() for one in kept.certificates)


def test_what_cannot_be_attacked_is_said() -> None:
    constant = hf.Encoder(nn.Sequential(nn.Flatten(), nn.Threshold(2.0, 1.0)), "constant", hf.Domain((1, 2, 2)))
    with refused(hf.HoldfastError, "constant", "attacked"):
        hf.attack(hf.Encoder(Broken(), "constant", constant.domain), images(), "linf:0.1")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) * torch.nan


def test_names_in_one_text_are_separated_by_commas_as_on_the_command_line() -> None:
    encoder = hf.load_encoder("builtin:digits-robust")
    images = hf.load_images("builtin:digits", encoder, limit=12)
    run = hf.evaluate(encoder, images, only="displacement, geometry", suite="quick", progress=False)
    assert {result.evaluation for result in run} == {"displacement", "geometry"}
    with pytest.raises(hf.HoldfastError, match="only names nothing: ','"):
        hf.evaluate(encoder, images, only=",", progress=False)
