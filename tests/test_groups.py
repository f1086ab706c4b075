"""Laws of groups over the whole catalogue: an image of the same group is never another image."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.core.balls import Linf
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.points import counting
from holdfast.core.records import Result
from holdfast.measure.evaluation import Evaluation, fits_of, parts, regards_groups, with_bank
from holdfast.measure.observation import Joint, Observation, joined
from holdfast.measure.population import Fit, Population
from holdfast.measure.store import key_of
from tests.test_laws import DOUBLE, EVALUATIONS, bank, builtin, every
from tests.test_laws import digits as labelled

OBJECTS, CROPS = 8, 2
COUNT = OBJECTS * CROPS
OTHERS = {
    # What each takes for other images, by a series in which every value is of one image and those.
    "attack-radius": ("attack_radius", "impersonation_radius", "overlap_radius"),
    "breakaway": ("breakaway_share", "nearest_neighbour_kept", "crossed_to_a_random_image"),
    "certified-attack-radius": ("certified_attack_radius", "attacked_attack_radius"),
    "certified-breakaway": ("certified_breakaway", "attacked_breakaway"),
    "certified-overlap": ("certified_margin", "attacked_margin"),
    "certified-radius": ("certified_radius", "attacked_radius"),
    "common-perturbations": ("nearest_neighbour_kept", "neighbour_overlap"),
    "impersonation": ("relative_quantile", "impersonated"),
    "instance-accuracy": ("certified_pairs", "robust_pairs"),
    "overlap": ("adversarial_margin",),
    "patch-retrieval": ("patches_found", "edited_patches_found"),
    "query-only": ("breakaway_share", "decision_radius"),
    "smoothed-retrieval": ("certified_nearest_neighbour_radius",),
    "transfer": ("breakaway_share", "nearest_neighbour_kept"),
}
OWN_WAY = {
    # These find other images by a way of their own, which leaves the own group out as well, or look at one image alone.
    "nearest_image",  # chooses the images of other groups first
    "illustrate",  # of threshold: skips those of the own group
    "Gallery._distances",  # the patches of the image itself
}


class Grouped(Images):
    """Images that count how often their groups are looked at."""

    looks = 0

    @property
    def groups(self) -> tuple[str, ...] | None:
        self.looks += 1
        return self._groups

    @groups.setter
    def groups(self, groups: tuple[str, ...] | None) -> None:
        self._groups = groups


def crops(kind: type[Images] = Images, grouped: bool = True) -> Images:
    """Two nearly identical crops of each of eight digits."""
    plain = labelled(OBJECTS)
    generator = torch.Generator().manual_seed(0)
    pixels = plain.pixels(range(OBJECTS)).repeat(CROPS, 1, 1, 1)
    pixels = (pixels + 0.01 * torch.rand(pixels.shape, generator=generator)).clamp(0, 1)
    names = [f"crop {crop} of {thing}" for crop in range(CROPS) for thing in range(OBJECTS)]
    groups = [f"{thing}" for _ in range(CROPS) for thing in range(OBJECTS)]
    assert plain.labels is not None
    return kind(pixels, names, plain.labels.repeat(CROPS), "crops", groups=groups if grouped else None)


def of_many(evaluation: Evaluation) -> Evaluation:
    """The evaluation of all images rather than of a few, in one ball."""
    wanted = {"samples": COUNT, "balls": (Linf(0.1),), "attacks": (AdaptiveAttack(restarts=1, steps=2),)}
    given = {name: value for name, value in wanted.items() if name in evaluation.__dataclass_fields__}
    return cast(Evaluation, replace(cast(Any, evaluation), **given)) if evaluation.name in OTHERS else evaluation


def population(evaluation: Evaluation, images: Images) -> Population:
    held = Population(builtin(), bank(), DOUBLE) if evaluation.needs_bank else None
    return Population(builtin(), images, DOUBLE, bank=held)


def measured(evaluation: Evaluation, people: Population) -> tuple[Result, dict[str, bool]]:
    """The result, and whether each part of it looked at groups."""
    images, observation, looked = people.images, evaluation.observation(), dict[str, bool]()
    assert isinstance(images, Grouped)

    def noted(name: str, work: Callable[[], Any]) -> Any:
        before = images.looks
        done = work()
        looked[name] = images.looks > before
        return done

    def learned(fit: Fit[Any]) -> None:
        with suppress(HoldfastError):  # of a probe that has no bank here
            people.learned(fit)

    for fit in fits_of(evaluation):
        noted(f"{fit}", partial(learned, fit))
    rows = observation.rows(people)
    seen = [noted(f"{part}", partial(part.observe, people, rows)) for part in parts(observation)]
    return evaluation.result(people, rows, joined(seen) if isinstance(observation, Joint) else seen[0]), looked


class Spy:
    """Looks at every other image that a population hands out, and at every search among its codes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pairs, self.searches = list[tuple[str, str]](), list[str]()
        for name in ("random_others", "nearest"):
            patch.setattr(Population, name, self._handing_out(getattr(Population, name), name))
        chosen = Population.__dict__["partners"].func

        def partners(people: Population) -> Tensor:
            found: Tensor = chosen(people)
            self._note(people, range(len(found)), people, found[:, None])
            return found

        patch.setattr(Population, "partners", property(partners))
        for name in ("nearest_rows", "crossings", "closer_counts", "share_of_pairs_within", "shares_within"):
            original: Callable[..., Any] = getattr(counting, name)
            for module in [each for key, each in sys.modules.items() if key.startswith("holdfast.")]:
                if getattr(module, name, None) is original and module is not counting:
                    patch.setattr(module, name, self._searching(original))

    def _note(self, people: Population, rows: Sequence[int], gallery: Population, found: Tensor) -> None:
        mine, theirs = people.images.groups, gallery.images.groups
        if mine and theirs:
            self.pairs += [(mine[row], theirs[k]) for row, line in zip(rows, found.tolist(), strict=True) for k in line]

    def _handing_out(self, original: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
        def wrapped(people: Population, *args: Any, **rest: Any) -> Tensor:
            found = original(people, *args, **rest)
            rows, gallery = (args[0], people) if name == "random_others" else (args[2], (*args[4:], people.gallery)[0])
            self._note(people, rows, gallery, found)
            return found

        return wrapped

    def _searching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **rest: Any) -> Any:
            kin = [value for value in (*args, *rest.values()) if isinstance(value, counting.Kin)]
            groups = original.__name__.endswith("within") and len(args) > 3 and args[3] is not None
            if not kin and not groups:
                self.searches.append(_caller())
            return original(*args, **rest)

        return wrapped


def _caller() -> str:
    """Who searched."""
    frame, names = cast(Any, sys._getframe(2)), list[str]()
    while frame is not None and len(names) < 6:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    found = [own for own in OWN_WAY for name in names if name.endswith(own)]
    return found[0] if found else names[0]


@cache
def grouped(evaluation: Evaluation) -> tuple[Result, dict[str, bool], Spy]:
    with pytest.MonkeyPatch.context() as patch:
        spy = Spy(patch)
        result, looked = measured(evaluation, population(evaluation, crops(Grouped)))
    return result, looked, spy


@every
def test_no_evaluation_takes_an_image_of_the_group_for_another(evaluation: Evaluation) -> None:
    _, _, spy = grouped(of_many(evaluation))
    assert [pair for pair in spy.pairs if pair[0] == pair[1]] == []
    if not evaluation.needs_bank:  # the bank of these tests has no groups
        assert set(spy.searches) <= OWN_WAY
    assert spy.pairs or evaluation.name not in OTHERS or with_bank(evaluation), "vacuous"


@every
def test_what_looks_at_groups_says_so(evaluation: Evaluation) -> None:
    """Else numbers stored without groups would be taken for those with them."""
    evaluation = of_many(evaluation)
    _, looked, _ = grouped(evaluation)
    whole: tuple[Observation | Fit[Any], ...] = (*fits_of(evaluation), *parts(evaluation.observation()))
    for what in whole:
        assert regards_groups(what) or not looked[f"{what}"], what
        keys = [key_of(what, builtin(), crops(grouped=kind), DOUBLE).digest for kind in (True, False)]
        assert (keys[0] != keys[1]) == regards_groups(what)
    for part in parts(evaluation.observation()):  # what is learned may have left groups out
        assert regards_groups(part) or not any(fit.uses_groups for fit in part.fits())
    keys = [key_of(evaluation, builtin(), crops(grouped=kind), DOUBLE).digest for kind in (True, False)]
    assert keys[0] != keys[1]


def per_image(result: Result, quantities: Sequence[str]) -> dict[tuple[str, ...], dict[str, float]]:
    return {
        (each.quantity, *map(str, sorted(each.conditions.items()))): dict(
            zip(result.findings.ids, each.values, strict=True)
        )
        for each in result.series
        if each.quantity in quantities
    }


def in_a_pair() -> tuple[str, Images]:
    """An image that is half of a pair with its crops and without, and the images without its crops."""
    images = crops()
    groups = images.groups
    assert groups is not None
    for row, name in enumerate(images.ids):
        alone = images[[k for k in range(COUNT) if k == row or groups[k] != groups[row]]]
        people = [Population(builtin(), each, DOUBLE) for each in (images, alone)]
        if all(each.images.ids.index(name) in each.disjoint_pairs(COUNT) for each in people):
            assert len(alone) == COUNT - CROPS + 1
            return name, alone
    raise AssertionError("no such image")


TAKING = [of_many(evaluation) for evaluation in EVALUATIONS if evaluation.name in OTHERS]


@pytest.mark.parametrize("evaluation", TAKING, ids=lambda evaluation: evaluation.name)
def test_images_of_its_group_make_no_difference_to_an_image(evaluation: Evaluation) -> None:
    """Its numbers are those without them. Without groups they are not."""
    name, alone = in_a_pair()
    quantities = OTHERS[evaluation.name]
    whole, _, _ = grouped(evaluation)
    found = [per_image(whole, quantities), per_image(evaluation(builtin(), alone, DOUBLE), quantities)]
    assert {quantity for quantity, *_ in found[0]} == set(quantities)
    compared = 0
    for case, values in found[0].items():
        here, there = values[name], found[1][case][name]
        if here == here and there == there:  # pairs share no image: which are formed depends on all images
            compared += 1
            assert here == pytest.approx(there, rel=1e-6, abs=1e-9), case
    assert compared
    ungrouped = per_image(evaluation(builtin(), crops(grouped=False), DOUBLE), quantities)
    assert _differ(found[0], ungrouped), "groups change nothing"


def _differ(left: dict[tuple[str, ...], dict[str, float]], right: dict[tuple[str, ...], dict[str, float]]) -> bool:
    return any(str(left[case]) != str(right[case]) for case in left)


@pytest.mark.parametrize("evaluation", TAKING, ids=lambda evaluation: evaluation.name)
def test_one_group_of_images_is_refused(evaluation: Evaluation) -> None:
    plain = crops()
    one = Images(plain.pixels(range(4)), plain.ids[:4], groups=["same"] * 4)
    with pytest.raises(HoldfastError, match="'same'"):
        evaluation(builtin(), one, DOUBLE)
