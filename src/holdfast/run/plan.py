"""The plan of a request once its encoders and images are known: which evaluations apply, and on how many images.

Tuning of speed: how many images are attacked together, and the C library's memory. Only time depends on it. The batch size
is measured among sizes for which torch uses the same kernels. The arrangement of the network (``core/optimised``) changes
rounding, so it is not tuned.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import product
from math import inf
from time import perf_counter
from weakref import WeakKeyDictionary

import torch

from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.bounds.network.size import nonlinear_entries
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, warn
from holdfast.core.images import Images, constant_images
from holdfast.core.optimised import operations, optimised
from holdfast.core.records import grouped
from holdfast.encoders.baseline import is_baseline
from holdfast.encoders.embeddings import Embeddings
from holdfast.measure.evaluation import Evaluation, answerable, changes_by_default, inapplicable, restricted, settings
from holdfast.report.text import listed
from holdfast.run.catalog import HEAVY, LARGE, most_forwards, share
from holdfast.run.inputs import Inputs
from holdfast.run.request import Request, build, planned, requested_balls

WANTS_MORE = (
    "that takes changed images, the network, or what the codes were computed from (for spade, inputs=FILE names it)"
)
"""Evaluations that need more than stored embeddings."""


def adapt_plan(request: Request, plan: Sequence[Evaluation], inputs: Inputs) -> list[Evaluation]:
    """Return ``plan`` for these encoders and images: with settings that follow from them, without what they do not allow.

    Raises:
        HoldfastError: what was asked for by name is not allowed, a ball does not fit, or nothing is left.
    """
    plan = set_encoders(request, plan_for_large_encoders(request, inputs.encoders) or plan, inputs.encoders)
    for ball, encoder in product(requested_balls(plan), inputs.encoders):
        ball.check(encoder.domain)
    plan = set_tags(plan, inputs.encoders)
    for encoder in inputs.encoders:
        plan = drop_unlabelled(request, plan, inputs.images(encoder), inputs.bank(encoder))
    plan = drop_inapplicable(request, plan, inputs.encoders)
    return drop_unreachable(request, drop_unanswerable(plan, inputs), inputs.encoders)


def drop_unlabelled(
    request: Request, evaluations: Sequence[Evaluation], images: Images, bank: Images | None
) -> list[Evaluation]:
    """Return the ``evaluations`` that these labels allow.

    Raises:
        HoldfastError: others were asked for by name.
    """
    lacking = [each.name for each in (images, bank) if each is not None and each.labels is None]
    without = [evaluation.name for evaluation in evaluations if evaluation.needs_labels and lacking]
    if request.only and without:
        raise HoldfastError(
            f"{', '.join(without)} {'needs' if len(without) == 1 else 'need'} labels, and {' and '.join(lacking)} "
            f"{'has' if len(lacking) == 1 else 'have'} none; give them as in photos?labels=folders, or as the array labels "
            "beside the images or embeddings"
        )
    return [evaluation for evaluation in evaluations if evaluation.name not in without]


def set_tags(evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return ``evaluations`` with the tags that stored embeddings bring, where they take tags and none are set.

    Raises:
        HoldfastError: two files of tags are named.
    """
    files = list(
        dict.fromkeys(encoder.tags for encoder in encoders if isinstance(encoder, Embeddings) and encoder.tags)
    )
    if len(files) > 1:
        raise HoldfastError(
            f"tags are of images, not of embeddings, and two files of them are named ({', '.join(files)}); keep one"
        )
    return [
        build(type(each), {**settings(each), "tags": files[0]}) if files and getattr(each, "tags", "") is None else each
        for each in evaluations
    ]


def drop_unanswerable(evaluations: Sequence[Evaluation], inputs: Inputs) -> list[Evaluation]:
    """Return the ``evaluations`` that at least one encoder supports, with a note on those stored embeddings cannot answer.

    Raises:
        HoldfastError: none is left.
    """
    by_encoder = {
        encoder.name: [each for each in evaluations if answerable(each, encoder, inputs.images(encoder))]
        for encoder in inputs.encoders
    }
    alike = grouped(
        (tuple(each.name for each in evaluations if each not in answers), name) for name, answers in by_encoder.items()
    )
    for silent, named in alike.items():
        if not silent:
            continue
        sentence = f"codes alone are known of {listed(named)}, which cannot answer {listed(silent)}: {WANTS_MORE}"
        if not any(by_encoder.values()):
            raise HoldfastError(f"{sentence}; name the encoder that made them")
        warn(sentence, 3)
    return [each for each in evaluations if any(each in answers for answers in by_encoder.values())]


def drop_inapplicable(
    request: Request, evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]
) -> list[Evaluation]:
    """Return ``evaluations`` without transforms that do not apply to the inputs of some encoder, and say which these are.

    Transforms are images' own: JPEG means nothing for 13 channels, and none of them means anything for videos. All encoders
    get the same transforms, so that they can be compared.

    Raises:
        HoldfastError: an evaluation or a transform that was asked for by name does not apply, or nothing is left.
    """
    kept, left = list[Evaluation](), dict[tuple[str, Encoder], list[str]]()
    for evaluation in evaluations:
        needs = {
            change: (needed, encoder)
            for encoder in reversed(encoders)  # the first one is named
            for change, needed in inapplicable(evaluation, encoder).items()
        }
        if not needs:
            kept.append(evaluation)
            continue
        fewer, by_default = restricted(evaluation, needs), changes_by_default(evaluation)
        if not by_default or (request.only and fewer is None):
            named = evaluation.name if by_default else f"{listed(map(str, needs))} (of {evaluation.name})"
            raise HoldfastError(f"{_misfit([named], *next(iter(needs.values())))} Leave it out.")
        for why in dict.fromkeys(needs.values()):
            changes = listed([str(change) for change, reason in needs.items() if reason == why])
            left.setdefault(why, []).append(evaluation.name if fewer is None else f"{changes} (of {evaluation.name})")
        if fewer is not None:
            kept.append(fewer)
    if left:
        sentences = (_misfit(names, *why) for why, names in left.items())
        warn(f"Left out: {' '.join(sentences)}", 3)
    return kept


def _misfit(names: list[str], needed: str, encoder: Encoder) -> str:
    """Return why ``encoder`` cannot be measured by these transforms or evaluations."""
    domain = encoder.domain
    shape = f"{' x '.join(map(str, domain.shape))} in [{domain.low:g}, {domain.high:g}]"
    return f"{listed(names)}: {encoder.name} takes {shape}, not {needed}."


def drop_unreachable(
    request: Request, evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]
) -> list[Evaluation]:
    """Return ``evaluations`` without bounds of networks that are all too large for them, unless asked for by name.

    Baselines do not count: raw pixels have no network to bound, and proofs of them alone say nothing of the others.
    """
    neurons = [each.name for each in evaluations if hasattr(each, "neurons")]
    if request.only or not neurons:
        return list(evaluations)
    encoders = [each for each in encoders if not is_baseline(each)] or encoders
    largest = max(getattr(each, "neurons", 0) for each in evaluations)
    if min(map(operations, encoders)) <= largest:  # an entry takes an operation at least
        return list(evaluations)
    entries = {encoder.name: nonlinear_entries(encoder) for encoder in encoders}
    if min(entries.values()) <= largest:
        return list(evaluations)
    sizes = listed([f"{name} has at least {count:,}" for name, count in entries.items()])
    warn(
        f"{listed(neurons)} are left out: they bound networks of up to {largest:,} nonlinear entries, and {sizes}; center, "
        "feature and randomized smoothing certify any encoder, by noisy copies",
        3,
    )
    return [each for each in evaluations if each.name not in neurons]


def set_encoders(request: Request, evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return ``evaluations`` as they are in a run of these ``encoders``, without those that need others than one.

    Raises:
        HoldfastError: these were asked for by name, or their settings name an encoder that is not there.
    """
    lonely = [evaluation.name for evaluation in evaluations if evaluation.needs_others and len(encoders) < 2]
    if request.only and lonely:
        raise HoldfastError(
            f"{', '.join(lonely)} need another encoder to make attacks on, and {encoders[0].name} is the only one; name a "
            "second one, or add --baselines random"
        )
    return [evaluation.among(encoders) for evaluation in evaluations if evaluation.name not in lonely]


def sharing_attacks(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return ``evaluations``, with the attacks of breakaway in the attack radius: of the same images, they are made once."""
    breakaway = next((each for each in evaluations if isinstance(each, Breakaway)), None)
    return [each.beside(breakaway) if breakaway and isinstance(each, AttackRadius) else each for each in evaluations]


def plan_for_large_encoders(request: Request, encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return the plan of quick for large encoders, one for all of them, so that they can be compared; else nothing.

    It follows their operations, not their speed, so that the same command always asks for the same.
    """
    largest = max(operations(encoder) for encoder in encoders) if request.device == "cpu" else 0
    if request.suite != "quick" or largest <= LARGE:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when it was planned first
        plan, whole = planned(request, largest), planned(request)
    if plan == whole:
        return []
    name = next(encoder.name for encoder in encoders if operations(encoder) == largest)
    kinds = {type(evaluation) for evaluation in plan}
    absent = [each.name for each in whole if type(each) not in kinds]
    missing = f", and leaves {listed(absent)} out" if absent else ""
    percent = float(f"{100 * share(largest):.2g}")  # of two digits, and 100 is not 1e+02
    less = f"looks at {percent:g}% as many images as with a small network and attacks them less often"
    if largest >= HEAVY:
        less = (
            f"asks for {most_forwards():,} forwards of it at most, a gradient counted as three, and attacks 30 images"
        )
    warn(
        f"{name} takes {largest / 1e6:,.0f} million operations an image, so quick {less}{missing}; --suite "
        "standard asks for everything, --device cuda is faster"
    )
    return plan


BATCHES = (1, 2, 4, 8)
"""Images at a time that are tried. From 16 on torch takes other kernels for small convolutions on one thread."""
GAIN = 0.9
"""A larger batch must take less than this fraction of the time for an image: smaller ones lose less when interrupted."""
SECONDS = 1.0
"""No further batch is tried after so long."""
MEASURED = 1 << 26
"""Operations an image from which a batch is measured: a shard of what has fewer is larger than any of them."""
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of glibc's ``mallopt``, from its ``malloc.h``."""
MAPPED, KEPT = 1 << 25, 1 << 30
"""Largest block in bytes that comes from the heap (glibc's maximum), and free bytes that stay there."""

_MEASURED: WeakKeyDictionary[Encoder, int] = WeakKeyDictionary()


def attacked_together(encoder: Encoder) -> int:
    """Measure the fastest number of images of a large encoder to attack together on a CPU; 1 for other encoders."""
    if encoder not in _MEASURED:
        weight = next(encoder.module.parameters(), None)
        large = weight is not None and weight.device.type == "cpu" and operations(encoder) >= MEASURED
        _MEASURED[encoder] = fastest(lambda count: gradient_seconds(encoder, count)) if large else 1
    return _MEASURED[encoder]


def fastest(seconds: Callable[[int], float]) -> int:
    """Return the smallest of the tried batches whose time per image is near the best.

    ``seconds`` times a batch of the given number of images.

    Example:
        >>> fastest(lambda count: 0.03 + 0.01 * count), fastest(lambda count: 0.03 * count)
        (8, 1)
    """
    began, best, least = perf_counter(), 1, inf
    with suppress(Exception):  # one that passes no gradient, or has no memory for more
        for count in BATCHES:
            if (each := seconds(count) / count) < GAIN * least:
                best, least = count, each
            if perf_counter() - began > SECONDS:
                break
    return best


def gradient_seconds(encoder: Encoder, count: int) -> float:
    """Return the seconds of a forward and a backward of ``count`` images, the better of two after one."""
    return min([_timed(encoder, count) for _ in range(3)][1:])


def _timed(encoder: Encoder, count: int) -> float:
    encoder, weight = optimised(encoder), next(encoder.module.parameters())
    images = constant_images(encoder.domain, count, weight)
    since = perf_counter()
    with torch.enable_grad():
        codes = encoder.forward(images.requires_grad_())
        torch.autograd.grad(codes.square().sum(), images)[0].cpu()
    return perf_counter() - since


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, and return whether it does; other C libraries and user settings stay as they are.

    By default glibc maps and unmaps every large tensor, or gives the end of the heap back, and the next operation waits for
    the same pages again: half of the time of a forward of many images.
    """
    settings = (*(name for name in os.environ if name.startswith("MALLOC_")), os.environ.get("GLIBC_TUNABLES", ""))
    if not sys.platform.startswith("linux") or any("MALLOC" in text.upper() for text in settings):
        return False
    try:
        library = ctypes.CDLL(None)
        version, mallopt = library.gnu_get_libc_version, library.mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return bool(version and mallopt(MMAP_THRESHOLD, MAPPED) and mallopt(TRIM_THRESHOLD, KEPT))
