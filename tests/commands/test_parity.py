"""The verb parity: known pairs are told apart, from files to verdicts, causes, gates and reports."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands import parity_sides as sides
from holdfast.commands.evaluate import MissingResultsWarning
from holdfast.commands.parity import _made_from
from holdfast.commands.parity_trials import AS_IT_IS, EFFICIENTNET, REVERSAL, of_pixels, variants
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Failure, Findings, Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.run import forecast as deadline
from holdfast.run.engines.base import Engine
from holdfast.run.health_checks import USUAL
from holdfast.run.run import Run, Seen
from holdfast.run.table import unfit
from tests import tiny
from tests.commands.parity_pairs import DOMAIN, MEAN, PAIRS, STD, Fixed, encoder, network, photographs
from tests.facts import says, warned


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("parity") / "photos")


@pytest.fixture(scope="module")
def answer(files: Path) -> hf.Parity:
    candidates = [make() for make, _, _ in PAIRS.values()]
    return hf.parity(encoder(network(), "reference"), candidates, str(files), out=files.parent / "run")


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_known_pairs_are_told_apart_and_the_cause_is_named(answer: hf.Parity, pair: str) -> None:
    _, verdict, cause = PAIRS[pair]
    name = "reference in float16" if pair == "fp16" else pair
    assert answer.verdicts[name] == verdict
    said = [each for each in answer[name].findings.verdicts if each.question == "Are images prepared alike?"]
    assert [each.witness["preprocessing"] for each in said] == (
        [cause] if cause and verdict != "same to rounding" else []
    )


@pytest.mark.parametrize("stated", [True, False])
def test_trials_are_what_networks_built_like_this_would_give(stated: bool) -> None:
    """The oracle builds each network anew: another normalisation inside, undone or in its place, and channels turned."""
    whole = encoder(network(), "whole")
    clip = USUAL["CLIP normalisation"]
    tried = encoder(network(), "tried", *clip)
    if not stated:
        tried = hf.Encoder(nn.Sequential(Fixed(*clip), network()), "tried", DOMAIN, caution="")
    pixels = torch.rand(5, *DOMAIN.shape, generator=torch.Generator().manual_seed(0))
    names = set[str]()
    for attempt in of_pixels(tried, whole):
        name = attempt.name.removesuffix(REVERSAL).removesuffix(", and ") or "channels"
        reversal = attempt.reverses
        inside = network() if stated else tried.module
        expected = pixels.flip(1) if reversal else pixels
        if "in place of" in name:  # what is built in is undone, and that of the other comes first
            undone = next(USUAL[usual] for usual in USUAL if f"in place of {usual}," in name)
            expected = Fixed(MEAN, STD)(expected) * torch.tensor(undone[1])[:, None, None]
            expected = expected + torch.tensor(undone[0])[:, None, None]
        elif not name.startswith("channels"):
            known = USUAL | {"the normalisation of whole": (MEAN, STD), "EfficientNet normalisation": EFFICIENTNET}
            base = next(each for each in known if name.startswith(each))
            mean, std = variants(known[base])[name.removeprefix(base)]
            expected = Fixed(mean, std)(expected)
        elif stated:
            expected = Fixed(*clip)(expected)
        torch.testing.assert_close(tried.forward(attempt(pixels)), inside(expected), rtol=1e-4, atol=1e-3)
        names.add(attempt.name)
    assert {"the normalisation of whole", "pixels in [0, 255]", "channels in the opposite order"} <= names
    assert any("built in" in name for name in names) == (not stated)


def test_a_preprocessing_that_makes_it_worse_is_not_called_the_nearest(answer: hf.Parity) -> None:
    """Of another training the best attempt may come nearer or not; the sentence says which, and never that it helps."""
    seen = set[bool]()
    for result in answer.results:
        tried = {e.conditions["preprocessing"]: e.value for e in result.estimates if e.quantity == "distance_prepared"}
        for verdict in result.findings.verdicts:
            if verdict.question == "Are images prepared alike?" and verdict.status == "no violation found":
                helps = min(value for name, value in tried.items() if name != AS_IT_IS) < tried[AS_IT_IS]
                seen.add(helps)
                assert ("the nearest, " in verdict.reason) == helps
                assert (says(verdict.reason, "other makes smaller")) == (not helps)
    assert seen, "vacuous: every difference was explained"


def test_reports_are_headed_by_both_names(answer: hf.Parity) -> None:
    assert answer.page is not None
    assert re.search(r"<h1>Parity of \d+ encoders with reference on ", answer.page.read_text())


def test_every_number_has_an_interval_or_says_why_not(answer: hf.Parity) -> None:
    for estimate in answer["int8"].estimates:
        assert (
            estimate.low <= estimate.value <= estimate.high
            or estimate.reason
            or estimate.method.endswith("no interval")
        )
    assert any(says(sentence, "batch") for sentence in answer["int8"].findings.warnings)
    assert len(answer["BGR"].findings.pictures) == 6
    assert answer["BGR"].findings.pictures[3].labels[1] == "lost 1"
    assert answer["BGR"].findings.pictures[0].labels == (
        "image",
        "nearest by the reference",
        "nearest by the candidate",
    )


def test_a_gate_reads_the_run_and_repeating_it_computes_nothing(
    answer: hf.Parity, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = files.parent / "run"
    passed = {each.encoder: each.passed for each in hf.check(str(run), "neighbours_kept>=0.95")}
    assert passed["same"]
    assert passed["rotation"], "neighbours stay in an index that is encoded anew"
    assert not passed["BGR"]
    assert {each.encoder: each.passed for each in hf.check(str(run), "neighbours_kept_mixed>=0.95")}[
        "rotation"
    ] is False

    def again(*_: object) -> None:
        raise AssertionError("it was computed already")

    monkeypatch.setattr("holdfast.commands.parity.findings", again)
    assert hf.parity(encoder(network(), "reference"), encoder(network(), "same"), str(files), out=run).verdicts == {
        "same": "same to rounding"
    }


def test_codes_in_files_are_candidates_and_tell_what_preprocessing_made_them(files: Path, tmp_path: Path) -> None:
    reference, odd = encoder(network(), "reference"), encoder(network(), "odd", interpolation="bilinear")
    images = hf.load_images(str(files), odd)
    codes = np.concatenate([odd(images.pixels(range(start, start + 50))).numpy() for start in (0, 50, 100)])
    shuffled = np.random.default_rng(0).permutation(len(codes))
    np.savez(tmp_path / "codes.npz", codes=codes[shuffled], ids=np.array(images.ids)[shuffled])
    answer = hf.parity(reference, tmp_path / "codes.npz", str(files))
    (cause,) = [each for each in answer["codes.npz"].findings.verdicts if each.question == "Are images prepared alike?"]
    assert cause.witness["preprocessing"] == "shorter side to 16, centre 16 x 16, bilinear"
    both = hf.parity(str(tmp_path / "codes.npz"), f"turned=embeddings:{tmp_path / 'codes.npz'}")
    assert both.verdicts == {"turned": "same to rounding"}, "two files need no images"


def test_files_of_codes_may_lie_in_a_folder_whose_name_has_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    path = tmp_path / "day=1" / "codes.npz"
    np.savez(path, codes=np.random.default_rng(0).normal(size=(40, 4)))
    assert hf.parity(path, str(path)).verdicts == {"codes.npz (2)": "same to rounding"}


def stored(
    folder: Path, name: str, module: nn.Module, pixels: torch.Tensor, ids: list[str], unit: bool = False
) -> Path:
    """Write the codes of pixels that another program prepared."""
    codes = encoder(module, name)(pixels)
    codes = codes / codes.norm(dim=1, keepdim=True) if unit else codes
    np.savez(folder / f"{name}.npz", codes=codes.numpy(), ids=np.array(ids))
    return folder / f"{name}.npz"


def oblong(folder: Path, count: int = 40) -> Path:
    """Write photographs that are wider than high, so that cropped and squashed ones differ."""
    photographs(folder, count)
    for path in folder.iterdir():
        with Image.open(path) as image:
            image.resize((48, 30), Image.Resampling.NEAREST).save(path)
    return folder


def prepared(folder: Path, prepare: Callable[[Image.Image], Image.Image]) -> tuple[list[str], torch.Tensor]:
    """Return the ids and pixels that a program of the test's own makes of files."""
    paths = sorted(folder.iterdir())
    pixels = [np.array(prepare(Image.open(path)), dtype=np.float32) / 255 for path in paths]
    return [path.name for path in paths], torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


def cause_of(result: Result) -> tuple[str, str]:
    """Return which preprocessing is named as the cause, and the sentence."""
    (said,) = [each for each in result.findings.verdicts if each.question == "Are images prepared alike?"]
    return said.witness["preprocessing"], said.reason


def squashed(image: Image.Image) -> Image.Image:
    return image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)


def cropped(image: Image.Image) -> Image.Image:
    short = round(16 / 0.875)
    width = int(short * image.width / image.height)
    left, top = round((width - 16) / 2), round((short - 16) / 2)
    resized = image.convert("RGB").resize((width, short), Image.Resampling.LANCZOS)
    return resized.crop((left, top, left + 16, top + 16))


@pytest.mark.parametrize("divergence", ["cosine", "l2"])
@pytest.mark.parametrize(
    ("prepare", "cause"),
    [
        (squashed, "squashed to 16 x 16, bilinear"),
        (cropped, "shorter side to 18, centre 16 x 16, lanczos"),
    ],
)
def test_a_squash_and_an_interpolation_with_a_crop_are_recognised(
    tmp_path: Path, prepare: Callable[[Image.Image], Image.Image], cause: str, divergence: str
) -> None:
    """Of codes at norm 1, too: then directions are compared, by l2 as well."""
    folder = oblong(tmp_path / "photos")
    ids, pixels = prepared(folder, prepare)
    path = stored(tmp_path, "codes", network(), pixels, ids, unit=divergence == "l2")
    answer = hf.parity(encoder(network(), "reference"), path, str(folder), divergence=divergence)
    assert cause_of(answer["codes.npz"])[0] == cause


def test_a_resizing_and_a_channel_order_are_recognised_together(tmp_path: Path) -> None:
    folder = oblong(tmp_path / "photos")
    ids, pixels = prepared(folder, squashed)
    path = stored(tmp_path, "codes", network(), pixels.flip(1), ids)
    named, _ = cause_of(hf.parity(encoder(network(), "reference"), path, str(folder))["codes.npz"])
    assert says(named, "opposite order", "16 x 16", "bilinear")


@pytest.mark.parametrize("share", [1, 8])
def test_a_decoding_that_ignores_how_files_are_turned_is_recognised(tmp_path: Path, share: int) -> None:
    """Where one file in eight is turned, most codes agree: it is these files that are looked at."""
    folder = photographs(tmp_path / "photos", 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    for path in sorted(folder.iterdir())[::share]:
        with Image.open(path) as image:
            image.save(path, exif=exif)
    ids, pixels = prepared(folder, lambda image: image.convert("RGB").resize((16, 16), Image.Resampling.BICUBIC))
    path = stored(tmp_path, "codes", network(), pixels, ids)
    answer = hf.parity(encoder(network(), "reference"), path, str(folder))
    assert cause_of(answer["codes.npz"])[0] == "EXIF orientation ignored"


@pytest.mark.parametrize(("behind", "cause"), [("black", "transparent parts on black"), ("", "transparency dropped")])
@pytest.mark.parametrize("kind", [Image.Resampling.BICUBIC, Image.Resampling.NEAREST])
def test_what_became_of_transparent_parts_is_recognised(
    tmp_path: Path, behind: str, cause: str, kind: Image.Resampling
) -> None:
    """Alone, and together with another interpolation, which is judged rightly only after it."""
    folder = photographs(tmp_path / "photos", 40)
    for row, path in enumerate(sorted(folder.iterdir())):
        with Image.open(path) as image:
            alpha = Image.fromarray(np.random.default_rng(row).integers(0, 256, (image.height, image.width), np.uint8))
            image.putalpha(alpha)
            image.save(path)

    def opaque(image: Image.Image) -> Image.Image:
        page = Image.new("RGBA", image.size, behind) if behind else None
        flat = Image.alpha_composite(page, image) if page else image
        return flat.convert("RGB").resize((16, 16), kind)

    ids, pixels = prepared(folder, opaque)
    answer = hf.parity(encoder(network(), "reference"), stored(tmp_path, "codes", network(), pixels, ids), str(folder))
    resizing = "shorter side to 16, centre 16 x 16, nearest" if kind == Image.Resampling.NEAREST else ""
    assert cause_of(answer["codes.npz"])[0] == ", and ".join(filter(None, (resizing, cause)))


@pytest.mark.parametrize(
    ("base", "variant"),
    [
        ("EfficientNet normalisation", ""),
        ("EfficientNet normalisation", ", of pixels in [-1, 1]"),
        ("ImageNet normalisation", ", applied twice"),
    ],
)
def test_an_offset_and_normalising_twice_are_recognised(files: Path, base: str, variant: str) -> None:
    mean, std = variants((USUAL | {"EfficientNet normalisation": EFFICIENTNET})[base])[variant]
    wrong = encoder(network(), "wrong")
    right = hf.Encoder(nn.Sequential(Fixed(mean, std), network()), "right", DOMAIN, geometry=wrong.geometry, caution="")
    answer = hf.parity(right, wrong, str(files), limit=40)
    assert cause_of(answer["wrong"])[0] == f"{base}{variant}"


def test_weights_are_blamed_only_where_all_preprocessing_is_known_and_little_is_left(
    files: Path, tmp_path: Path
) -> None:
    reference = encoder(network(), "reference")
    near, far = network(), network(seed=1)
    with torch.no_grad():
        for weight in near.parameters():
            weight.add_(
                0.02 * weight.abs().mean() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
            )
    images = hf.load_images(str(files), reference)
    path = stored(tmp_path, "codes", near, images.pixels(range(len(images))), list(images.ids))
    answer = hf.parity(reference, [encoder(near, "near"), encoder(far, "far"), path], str(files), k=3, limit=40)
    blamed = {result.encoder.name: "weights" in cause_of(result)[1] for result in answer.results}
    assert blamed == {"near": True, "far": False, "codes.npz": False}
    assert {cause_of(result)[0] for result in answer.results} == {AS_IT_IS}


def test_single_broken_embeddings_are_no_preprocessing(files: Path, tmp_path: Path) -> None:
    reference = encoder(network(), "reference")
    images = hf.load_images(str(files), reference)
    codes = reference(images.pixels(range(len(images)))).numpy()
    codes[5] = codes[9]
    np.savez(tmp_path / "codes.npz", codes=codes, ids=np.array(images.ids))
    named, reason = cause_of(hf.parity(reference, tmp_path / "codes.npz", str(files))["codes.npz"])
    assert named == AS_IT_IS
    assert "weights" not in reason


def test_codes_of_another_width_are_compared_by_neighbours_alone(files: Path) -> None:
    wide = encoder(nn.Sequential(network(), nn.ZeroPad1d((0, 8))), "wide")
    result = hf.parity(encoder(network(), "reference"), wide, str(files), limit=60)["wide"]
    assert {"cosine", "distance", "neighbours_kept_mixed"}.isdisjoint(each.quantity for each in result.estimates)
    assert result.estimate("neighbours_kept").value == 1
    assert result.findings.verdicts[0].witness["verdict"] == "a rotated copy"


def test_a_bank_is_searched_instead_of_the_images() -> None:
    images, bank = tiny.images(20), Images(torch.rand(30, 1, 2, 2), name="others")
    result = hf.parity(tiny.encoder(), tiny.encoder("double", 4.0), images, bank=bank, k=5)["double"]
    kept = result.estimate("neighbours_kept")
    assert kept.conditions == {"k": "5", "among": "the bank"}
    assert kept.value == 1, "a scale keeps all neighbours"
    assert result.findings.verdicts[0].witness["verdict"] == "same directions"


@pytest.mark.parametrize("divergence", ["cosine", "l2"])
def test_embeddings_at_norm_1_keep_their_directions(tmp_path: Path, divergence: str) -> None:
    """As indexes store them: by cosine nothing has changed, and by l2 other images are the nearest."""
    codes = np.random.default_rng(0).normal(size=(60, 5)) * np.random.default_rng(1).uniform(0.2, 5, (60, 1))
    np.savez(tmp_path / "raw.npz", codes=codes)
    np.savez(tmp_path / "unit.npz", codes=codes / np.linalg.norm(codes, axis=1, keepdims=True))
    answer = hf.parity(tmp_path / "raw.npz", tmp_path / "unit.npz", divergence=divergence)
    result = answer["unit.npz"]
    assert answer.verdicts == {"unit.npz": "same directions"}
    assert result.estimate("same_direction").value == 1
    assert result.estimate("within_rounding").value < 1
    assert result.estimate("norm_ratio").value == pytest.approx(np.median(1 / np.linalg.norm(codes, axis=1)))
    assert (result.estimate("neighbours_kept").value == 1) == (divergence == "cosine")
    assert (result.estimate("distance").value < 1e-6) == (divergence == "cosine")


def test_a_code_near_zero_that_turns_round_is_not_the_same_by_cosine(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(60, 5))
    codes[7] *= 1e-4
    np.savez(tmp_path / "a.npz", codes=codes)
    codes[7] *= -1
    np.savez(tmp_path / "b.npz", codes=codes)
    verdicts = [
        hf.parity(tmp_path / "a.npz", tmp_path / "b.npz", divergence=divergence).verdicts["b.npz"]
        for divergence in ("cosine", "l2")
    ]
    assert verdicts[0] not in ("same to rounding", "same directions")
    assert verdicts[1] == "same to rounding"


def test_a_shifted_copy_is_rotated_by_l2_and_has_other_neighbours_by_cosine(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(60, 5))
    np.savez(tmp_path / "a.npz", codes=codes)
    np.savez(tmp_path / "b.npz", codes=codes @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0] + 3)
    by_l2, by_cosine = (
        hf.parity(tmp_path / "a.npz", tmp_path / "b.npz", divergence=divergence, out=tmp_path / "run")
        for divergence in ("l2", "cosine")
    )
    assert by_l2.verdicts == {"b.npz": "a rotated copy"}
    assert by_cosine.verdicts == {"b.npz": "another space"}, "the divergence is part of the key of what is stored"


def test_zero_codes_have_no_cosine(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(30, 5))
    np.savez(tmp_path / "a.npz", codes=codes)
    codes[3:5] = 0
    np.savez(tmp_path / "zero.npz", codes=codes)
    with pytest.warns(MissingResultsWarning, match="2 of 30 .* zero"):
        hf.parity(tmp_path / "a.npz", tmp_path / "zero.npz")
    result = hf.parity(tmp_path / "a.npz", tmp_path / "zero.npz", divergence="l2")["zero.npz"]
    assert result.estimate("same_direction").value == pytest.approx(28 / 30), "no direction is no rounding"


def test_few_images_that_are_kept_decide_nothing(tmp_path: Path) -> None:
    """Of 100 images that all keep their neighbours, one in fifty may be broken: two lists of neighbours for each."""
    a = np.random.default_rng(0).normal(size=(500, 3))
    b = a + 0.0005 * np.random.default_rng(1).normal(size=a.shape) * np.linalg.norm(a, axis=1, keepdims=True)
    b[0] = a[0] + 0.1  # more than rounding
    status = {}
    for count in (100, 500):
        np.savez(tmp_path / f"a{count}.npz", codes=a[:count])
        np.savez(tmp_path / f"b{count}.npz", codes=b[:count])
        answer = hf.parity(tmp_path / f"a{count}.npz", tmp_path / f"b{count}.npz", k=3)
        verdict = answer[f"b{count}.npz"].findings.verdicts[0]
        assert verdict.witness["verdict"] == "same neighbours"
        status[count] = verdict.status
    assert status == {100: "unknown", 500: "no violation found"}


@pytest.mark.slow
def test_whether_robustness_moved_is_paired_image_by_image() -> None:
    answer = hf.parity(tiny.encoder(), tiny.encoder("double", 4.0), tiny.images(20), k=5, radii=8)
    moved = answer["double"].estimate("attack_radius_change")
    assert moved.n == 8
    assert moved.low <= 0 <= moved.high
    assert {result.evaluation for result in answer.results} == {"parity", "attack-radius"}


def test_radii_of_more_images_have_another_key() -> None:
    """What a budget left of the radii is no answer for ever: with more of them, what follows is concluded again."""

    def radii(count: int) -> Result:
        findings = Findings.model_construct(ids=tuple(map(str, range(count))))
        return Result.model_construct(settings={"samples": 8}, findings=findings)

    failed = Failure.model_construct(reason="no gradient")
    made_from = [_made_from(each) for each in (None, failed, radii(4), radii(8))]
    assert all(left != right for left, right in combinations(made_from, 2))
    assert _made_from(radii(8)) == made_from[-1]


def test_a_budget_that_ends_at_a_candidate_leaves_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three takes all of the time there is, by a clock that runs ahead when it is encoded."""
    ahead, examined, observe = [0.0], list[str](), Run.observe

    def encoded(run: Run, observation: Observation, population: Population, codes: bool) -> Seen:
        ahead[0] = 1e9 if population.encoder.name == "slow" else ahead[0]
        return observe(run, observation, population, codes)

    def noted(population: Population, engine: Engine) -> str | None:
        examined.append(population.encoder.name)
        return unfit(population, engine)

    monkeypatch.setattr(Run, "observe", encoded)
    monkeypatch.setattr(sides, "unfit", noted)
    monkeypatch.setattr(deadline, "monotonic", lambda: monotonic() + ahead[0])
    candidates = [tiny.encoder("same"), tiny.encoder("slow", 3.0), tiny.encoder("late", 4.0)]
    with warned(MissingResultsWarning, "2 candidates", "slow"):
        answer = hf.parity(tiny.encoder(), candidates, tiny.images(30), k=3, budget=600.0, out=tmp_path / "run")
    assert answer.verdicts == {"same": "same to rounding"}
    assert [(failure.encoder, failure.error) for failure in answer.failures] == [
        ("slow", "BudgetSpentError"),
        ("late", "BudgetSpentError"),
    ]
    assert says(answer.failures[1].reason, "30 images", "missing", "budget")
    assert examined == ["tiny", "same", "slow"], "there is no time to look at the last one"
    assert answer.page is not None
    assert says(answer.page.read_text(), "budget", "spent")
    monkeypatch.setattr(Run, "observe", observe)
    ahead[0] = 0.0
    again = hf.parity(tiny.encoder(), candidates, tiny.images(30), k=3, budget=600.0, out=tmp_path / "run")
    assert [*again.verdicts] == ["same", "slow", "late"]
    assert again.failures == ()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"candidates": []}, "name a candidate"),
        ({"k": 30}, "k must be in 1..29, .* got 30"),
        ({"images": tiny.images(1)}, "no image has another beside it; add images"),
        ({"radii": -1}, "at least 0"),
        ({"divergence": "cosin"}, "Did you mean 'cosine'"),
        ({"images": None}, "name a folder of them with --images"),
        ({"reference": "float16"}, "name an encoder first"),
        (
            {"candidates": "float12"},
            "'float12'.*float32",
        ),
        ({"candidates": "codes.npy"}, "no file 'codes.npy'"),
        ({"reference": tiny.encoder(scale=0.0)}, "one embedding"),
    ],
)
def test_bad_input_gives_one_sentence(arguments: dict[str, object], sentence: str) -> None:
    usual = {"reference": tiny.encoder(), "candidates": tiny.encoder("other"), "images": tiny.images(30)}
    with pytest.raises(HoldfastError, match=sentence):
        hf.parity(**(usual | arguments))  # type: ignore[arg-type]


def test_files_of_other_images_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", codes=np.eye(20), ids=[f"a{k}" for k in range(20)])
    np.savez(tmp_path / "b.npz", codes=np.eye(20), ids=[f"b{k}" for k in range(20)])
    with warned(MissingResultsWarning, "alike", "sides"):
        hf.parity(tmp_path / "a.npz", tmp_path / "b.npz")


def test_codes_are_matched_by_id_wherever_they_stand_in_a_file(tmp_path: Path) -> None:
    """As candidates and as the reference, of files alone and beside an encoder."""
    images = tiny.images(30)
    codes, order = tiny.encoder()(images.pixels(range(30))).numpy(), np.random.default_rng(0).permutation(30)
    np.savez(tmp_path / "a.npz", codes=codes, ids=np.array(images.ids))
    np.savez(tmp_path / "b.npz", codes=codes[order], ids=np.array(images.ids)[order])
    a, b = tmp_path / "a.npz", tmp_path / "b.npz"
    for reference, candidate, shown in (
        (a, b, None),
        (b, a, None),
        (tiny.encoder(), b, images),
        (b, tiny.encoder(), images),
    ):
        (verdict,) = hf.parity(reference, candidate, shown, k=3).verdicts.values()
        assert verdict == "same to rounding"
    np.savez(tmp_path / "wrong.npz", codes=codes[order], ids=np.array(images.ids))
    assert hf.parity(a, tmp_path / "wrong.npz", k=3).verdicts == {"wrong.npz": "another space"}, "order matters here"


def test_the_bank_of_a_candidate_is_matched_by_id() -> None:
    """Two codes of an image in the bank stand in one row of the gallery, whatever order either side has them in."""
    images, bank = tiny.images(6), torch.arange(20.0).reshape(5, 4)
    population = Population(tiny.encoder(), images, RunSettings())
    side = sides.Side(population.encoder, population.run, "tiny")

    def with_bank(order: list[int]) -> sides.Coded:
        names = tuple(f"bank {row}" for row in order)
        return sides.Coded(side, population, list(range(6)), population.codes, None, bank[order], names)

    first, second = with_bank([0, 1, 2, 3]), with_bank([4, 2, 0, 3])
    gallery = sides.pair_of(first, second, "cosine").gallery
    assert gallery.reference.tolist() == gallery.candidate.tolist() == bank[[0, 2, 3]].tolist()


def test_images_that_one_file_lacks_are_left_out_in_a_sentence(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(40, 5))
    ids = np.array([f"image{row}" for row in range(40)])
    np.savez(tmp_path / "all.npz", codes=codes, ids=ids)
    np.savez(tmp_path / "some.npz", codes=codes[3:], ids=ids[3:])
    for reference, candidate in (("all.npz", "some.npz"), ("some.npz", "all.npz")):
        result = hf.parity(tmp_path / reference, tmp_path / candidate)[candidate]
        assert result.estimate("distance").n == 37
        (sentence,) = [each for each in result.findings.warnings if "left out" in each]
        assert sentence.startswith("3 of 40 images of all.npz have no code by some.npz, 'image0' the first")


def test_codes_of_other_widths_are_compared_as_far_as_they_can_be_and_that_is_said(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(40, 5))
    np.savez(tmp_path / "narrow.npz", codes=codes)
    np.savez(tmp_path / "wide.npz", codes=np.pad(codes, ((0, 0), (0, 2))))
    result = hf.parity(tmp_path / "narrow.npz", tmp_path / "wide.npz")["wide.npz"]
    assert any("7 features and narrow.npz of 5" in each for each in result.findings.warnings)
    assert result.estimate("neighbours_kept").value == 1


def test_images_of_one_group_have_no_intervals_and_so_no_certain_verdict(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).normal(size=(40, 5))
    np.savez(tmp_path / "a.npz", codes=codes, groups=["one"] * 40)
    np.savez(tmp_path / "b.npz", codes=codes + 0.1)
    np.savez(tmp_path / "c.npz", codes=codes)
    answer = hf.parity(tmp_path / "a.npz", [tmp_path / "b.npz", tmp_path / "c.npz"])
    moved, same = (answer[name].findings.verdicts[0] for name in ("b.npz", "c.npz"))
    assert moved.status == "unknown"
    assert says(moved.reason, "1 group", "interval")
    assert "nan" not in same.reason


def test_radii_of_codes_alone_are_refused_or_said_to_be_unknown(tmp_path: Path) -> None:
    encoder, images = tiny.encoder(), tiny.images(30)
    np.savez(tmp_path / "codes.npz", codes=encoder(images.pixels(range(30))).numpy(), ids=images.ids)
    with pytest.raises(HoldfastError, match="radii"):
        hf.parity(tmp_path / "codes.npz", encoder, images, radii=2)
    result = hf.parity(encoder, tmp_path / "codes.npz", images, radii=2)["codes.npz"]
    assert any("cannot be attacked" in each for each in result.findings.warnings)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"codes": np.where(np.arange(30)[:, None] == 7, np.nan, np.eye(30))}, "1 of 30 embeddings of .* row 7"),
        ({"codes": np.eye(20), "ids": tiny.images(20).ids}, "has no embedding for 10 of 30 images"),
        ({"codes": np.eye(30), "ids": tiny.images(30).ids, "groups": [""] * 30}, "groups of .* are missing for row 0"),
    ],
)
def test_a_file_that_cannot_be_compared_is_refused_in_a_sentence(
    tmp_path: Path, content: dict[str, Any], sentence: str
) -> None:
    np.savez(tmp_path / "codes.npz", **content)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingResultsWarning)
        with pytest.raises((HoldfastError, MissingResultsWarning), match=sentence) as refused:
            hf.parity(tiny.encoder(), tmp_path / "codes.npz", tiny.images(30), k=3)
    assert "\n" not in str(refused.value)


def test_files_without_ids_are_compared_by_position_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "codes.npy", np.eye(20))
    assert run(["parity", f"embeddings:{tmp_path / 'codes.npy'}", f"new=embeddings:{tmp_path / 'codes.npy'}"]) == 0
    assert says(capsys.readouterr().out, "no ids")


def test_a_gate_judges_the_forms_that_were_measured_alone(tmp_path: Path) -> None:
    hf.parity("builtin:digits-random", "?stored=binary", "builtin:digits", limit=30, out=tmp_path)
    (answer,) = hf.check(tmp_path, "neighbours_kept>=0")
    assert (answer.passed, answer.encoder) == (True, "digits-random as binary")
