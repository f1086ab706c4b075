"""What a run leaves out because it means nothing for the inputs of an encoder: JPEG of 13 channels, edits of videos."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.corruptions.evaluations.common_corruptions import CommonCorruptions
from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations
from holdfast.corruptions.evaluations.corruption_error import CorruptionError
from holdfast.geometry.evaluations.alignment import Alignment
from holdfast.measure.evaluation import Evaluation, inapplicable, without
from holdfast.report.comparison.comparable import with_relative_errors
from holdfast.run.catalog import evaluations
from holdfast.run.plan import drop_inapplicable
from holdfast.run.request import Request, planned
from holdfast.transforms.base import Transform

OF_EDITS = {"alignment", "common-corruptions", "common-perturbations", "grad-cam"}
OF_COLOUR = {"jpeg", "jpeg-compression-c", "hue-saturation", "hue-saturation:0.2"}


def encoder(*shape: int, low: float = 0.0) -> Encoder:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6))
    return Encoder(network, "small", Domain(shape, low), mean=[0.0] * shape[0], std=[1.0] * shape[0])


def changes(evaluation: Evaluation) -> set[str]:
    value = getattr(evaluation, evaluation.changes)
    return set(map(str, value if isinstance(value, tuple) else [value]))


@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_is_left_out_of_pictures(channels: int) -> None:
    whole = planned(Request())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drop_inapplicable(Request(), whole, [encoder(channels, 8, 8)]) == whole
    assert all(not without(each, encoder(channels, 8, 8)) for each in whole)


@pytest.mark.parametrize("channels", [2, 4, 13])
def test_edits_of_colour_are_left_out_of_other_channels_with_one_note(channels: int) -> None:
    with pytest.warns(HoldfastWarning, match="Left out") as notes:
        left = drop_inapplicable(Request(), planned(Request()), [encoder(channels, 8, 8)])
    (note,) = map(str, (each.message for each in notes))
    gone = set[str]()
    for before, after in zip(planned(Request()), left, strict=True):
        if before.changes:
            gone |= changes(before) - changes(after)
            assert not inapplicable(after, encoder(channels, 8, 8))
    assert gone == OF_COLOUR
    assert all(name in note for name in gone)
    assert f"{channels} x 8 x 8" in note


@pytest.mark.parametrize("shape", [(3, 2, 4, 4), (20,), (5, 7)])
def test_evaluations_of_edits_are_left_out_of_what_is_no_image(shape: tuple[int, ...]) -> None:
    whole = planned(Request())
    with pytest.warns(HoldfastWarning, match="Left out") as notes:
        left = drop_inapplicable(Request(), whole, [encoder(*shape)])
    assert len(notes) == 1
    assert {each.name for each in whole} - {each.name for each in left} == OF_EDITS
    for name, bank in (("drift", "x"), ("threshold", None)):  # which have more to say
        request = Request(only=(name,), bank=bank)
        with pytest.warns(HoldfastWarning, match=name):
            (rest,) = drop_inapplicable(request, planned(request), [encoder(*shape)])
        assert changes(rest) == set()


def test_pixels_of_another_range_are_left_alone() -> None:
    with pytest.warns(HoldfastWarning, match="scaling"):
        left = drop_inapplicable(Request(), planned(Request()), [encoder(3, 8, 8, low=-1.0)])
    assert not OF_EDITS & {each.name for each in left}


@pytest.mark.parametrize(
    ("only", "settings", "shape"),
    [
        ("grad-cam", {}, (3, 2, 4, 4)),
        ("alignment", {}, (20,)),
        ("patch-retrieval", {}, (3, 2, 4, 4)),
        ("common-perturbations", {"edits": ["jpeg", "blur"]}, (13, 8, 8)),
        ("drift", {"edits": ["jpeg"]}, (13, 8, 8)),
        ("grad-cam", {"change": "jpeg:30"}, (13, 8, 8)),
    ],
)
def test_what_was_asked_for_by_name_is_refused(only: str, settings: dict[str, object], shape: tuple[int, ...]) -> None:
    request = Request(
        only=(only,), bank="x" if only == "drift" else None, settings={only: settings} if settings else {}
    )
    with pytest.raises(HoldfastError, match=only):
        drop_inapplicable(request, planned(request), [encoder(*shape)])


def test_every_evaluation_with_transforms_says_where_they_are() -> None:
    """A new one that does not would fail on inputs of other channels."""
    for kind in evaluations().values():
        names = [name for name in ("edits", "kinds", "views", "corruptions", "change") if name in vars(kind)]
        assert names == ([kind.changes] if kind.changes else []), kind.name
        for value in vars(kind).values():
            if isinstance(value, Transform) or (
                isinstance(value, tuple) and any(isinstance(v, Transform) for v in value)
            ):
                assert kind.changes, kind.name


def test_means_over_fewer_transforms_say_so() -> None:
    """And are never taken for means over all of them."""
    for channels, lacking in ((13, True), (3, False)):
        small, pixels = (
            encoder(channels, 8, 8),
            torch.rand(8, channels, 8, 8, generator=torch.Generator().manual_seed(0)),
        )
        plan = [CommonCorruptions(severities=(2,)), CommonPerturbations(), Alignment()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = drop_inapplicable(Request(), plan, [small])
        means = {"corruptions_survived", "worst_corruption_accuracy", "edits_survived", "worst_edit_accuracy",
                 "alignment", "relative_alignment", "lidar"}  # fmt: skip
        for evaluation in plan:
            result = evaluation(small, Images(pixels))
            some = [each for each in result.findings.estimates if each.quantity in means]
            assert some
            for each in some:
                assert ("without" in each.conditions) == lacking, each.quantity
            for each in result.findings.estimates:
                if {"edit", "corruption", "view"} & each.conditions.keys():
                    assert "without" not in each.conditions


def test_mean_corruption_errors_say_which_corruptions_they_lack() -> None:
    small, noise = encoder(13, 8, 8), torch.Generator().manual_seed(0)
    images, bank = (Images(torch.rand(12, 13, 8, 8, generator=noise), labels=torch.arange(12) % 3) for _ in range(2))
    with pytest.warns(HoldfastWarning, match="jpeg-compression-c"):
        (evaluation,) = drop_inapplicable(Request(), [CorruptionError(severities=(1,))], [small])
    result = evaluation(small, images, bank=bank)
    (mean,) = (each for each in result.findings.estimates if each.quantity == "mean_corruption_error")
    assert mean.conditions["without"] == "jpeg-compression-c"
    other = result.model_copy(
        update={"encoder": result.encoder.model_copy(update={"name": "other", "fingerprint": "0"})}
    )
    relative = with_relative_errors([result, other])[0].estimate("relative_mean_corruption_error")
    assert relative.conditions["without"] == "jpeg-compression-c"
