"""Make an encoder more robust with images alone, and report gain and cost.

With a budget, the number of epochs is planned so that the learning rate falls to its end in time.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

import torch
from torch import nn

from holdfast.attacks.evaluations.attack_radius import AttackRadius
from holdfast.attacks.evaluations.breakaway import Breakaway
from holdfast.attacks.evaluations.displacement import Displacement
from holdfast.bounds.evaluations.certified_radius import CertifiedRadius
from holdfast.commands.evaluate import evaluate
from holdfast.commands.evaluated_run import EvaluatedRun, write_report
from holdfast.commands.inputs import ball_of
from holdfast.commands.train import UnfinishedError, check_trainable, train
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Encoder
from holdfast.core.errors import Conflict, HoldfastError, HoldfastWarning, OutOfRange
from holdfast.core.files import write_whole
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.core.options import HardenOptions, takes
from holdfast.core.records import Result
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import budget_start, seconds
from holdfast.corruptions.evaluations.common_perturbations import CommonPerturbations
from holdfast.data.reading.scan_cache import FILE, ScanCache
from holdfast.encoders.trained import ASKED, CHECKPOINT
from holdfast.measure.population import Population
from holdfast.measure.store import Cell, Key, Store, provenance
from holdfast.run.engines.ranks import process_rank
from holdfast.run.engines.ray import Ray
from holdfast.run.engines.requested import check_cluster, engine_of
from holdfast.run.inputs import NamedEncoder, NamedImages, load_encoder, loading_of, select
from holdfast.smoothing.evaluations.feature_smoothing import FeatureSmoothing
from holdfast.smoothing.evaluations.randomized_smoothing import RandomizedSmoothing
from holdfast.smoothing.evaluations.smoothed_retrieval import SmoothedRetrieval
from holdfast.training import hardening
from holdfast.training.adversaries.edits import Edits
from holdfast.training.hardening import (
    LEAST_BATCH,
    Promise,
    agreement_of,
    promise_of,
    recipe_for,
    watch_of,
)
from holdfast.training.loop import WATCHED
from holdfast.training.recipe import Recipe
from holdfast.transforms.severity import edit_names

MARGIN = 0.8
"""Fraction of the time that epochs are planned for: later steps may take longer than the timed one."""


def begun_epochs(out: str | Path | None) -> int | None:
    """Return the epochs of the training that ``out`` holds; none if there is none, or its checkpoint cannot be read."""
    if out is None or not (path := Path(out) / CHECKPOINT).exists():
        return None
    try:
        return int(json.loads(torch.load(path, map_location="cpu", weights_only=True)[ASKED])["epochs"])
    except Exception:  # training says what is wrong with it
        return None


def epochs_within(
    seconds: float,
    recipe: Recipe,
    images: Images,
    held_out: int,
    start: Encoder,
    device: str,
    watch: Callable[[nn.Module], dict[str, float]],
) -> int:
    """Return how many epochs of ``recipe`` take about ``seconds``, at least 1, by the time of one step.

    Args:
        seconds: for training.
        recipe, images: as ``train`` takes them.
        held_out: number of images that ``watch`` looks at.
        start, device: as ``train`` takes them.
        watch: is called after each epoch.
    """
    moments: list[float] = []

    def note(module: nn.Module) -> dict[str, float]:
        began = monotonic()
        watch(module)
        moments.extend((began, monotonic()))
        return {}  # what a step of a trial loses is no reason to stop

    # The first step also sets up what later steps use again, so the second one counts.
    trial = replace(recipe, epochs=2)
    train(trial, images[: recipe.batch], start=start, device=device, watch=note, progress=False)
    *_, ended, began, watched_at = moments
    watching = watched_at - began
    looked = 1 + min(WATCHED, len(images)) / held_out  # health looks at training images beside those held out
    epoch = (began - ended) * (len(images) // recipe.batch) + looked * watching
    return max(1, int(MARGIN * seconds / epoch))


#     min over f of the mean of  max { |f0(x) - f(x')|^2 : x' in the ball around x } + |f0(x) - f(x)|^2,   f0 as it was
#
# The first term is FARE (Schlarmann et al. 2024, https://arxiv.org/abs/2402.12336), the second, of the images
# themselves, that of TAR (Petrov and Kwiatkowska 2022, https://arxiv.org/abs/2210.04076). A part of the images is kept
# from training. On them the new codes are held against the old ones after each epoch, and both encoders are attacked in
# the end: in the ball, and at the smallest radius that an attack needs.
#
# OUT/ holds what ``holdfast train`` writes (``trained:OUT`` is the hardened encoder), and
#
#   agreement.json  the agreement asked and reached, where one was asked
#   before-after/   a run with both encoders, as ``holdfast evaluate`` writes it, and its report

BALL = Linf(1 / 255)
HELD_OUT, SHARE = 1000, 5
"""Kept from training: one in five images, at most a thousand."""
FEWEST = 20
TRAINING_SHARE = 0.5
"""Of a budget, at most; the rest is for measuring."""
ATTACKED = (AttackRadius.name, Breakaway.name, Displacement.name)
EDITED = CommonPerturbations.name
FAR = 100
"""Attack radii in other norms than linf are searched up to this multiple of the radius to resist."""
SMOOTHED = (SmoothedRetrieval.name, FeatureSmoothing.name)
"""What is measured of an encoder hardened for noise."""
FOLDER = "before-after"
AGREEMENT = "agreement.json"
"""File in OUT with the agreement asked, reached and whether it was kept."""


@dataclass(frozen=True, eq=False)
class Hardened:
    """A hardened encoder and what became of it."""

    encoder: Encoder
    """Hardened encoder."""
    agreement: dict[str, float]
    """How far its codes of clean images that it was not trained on are still those of the original."""
    run: EvaluatedRun
    """Original and hardened encoder under attack."""
    promise: Promise | None = None
    """Agreement that was asked for, and what was reached; None without one."""
    unfinished: str = ""
    """How far training came, where the budget ended it: then all of this is of the encoder as it is so far."""


@takes(HardenOptions)
def harden(
    encoder: NamedEncoder,
    images: NamedImages,
    *,
    ball: str | Ball | None = None,
    eps: str | float | None = None,
    epochs: int | None = None,
    rate: float | None = None,
    certified: bool = False,
    noise: float | None = None,
    agreement: float | None = None,
    edits: str | Sequence[str] = (),
    bank: NamedImages | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Unpack[HardenOptions],
) -> Hardened:
    """Return ``encoder`` trained to keep its codes inside ``ball``, as ``holdfast harden`` does.

    Args:
        encoder: one, or the reference of one; it is not changed.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1]; no labels are needed.
        ball: the changes to resist, as ``Linf(1 / 255)``, which is the default, or ``"l2:0.5"``.
        eps: radius of a linf ball, instead of ``ball``.
        epochs: how often training sees each image; by default 10 times, and more often where there are fewer than 1,000.
        rate: the largest learning rate; by default 3e-4 for networks with batch norm and 2e-5 for others. 1e-5 is common for
            large transformers, and networks of a few layers take 1e-3.
        certified: train against the worst codes that bounds allow, instead of those that an attack finds, and measure what
            is proved before and after; for linf balls and networks that can be bounded.
        noise: hold the codes of copies with normal noise of this deviation in every pixel at the clean codes, and measure
            what is certified of the smoothed encoder. With a ``ball``, as ``"l2:0.25"``, it is attacked in it as well.
        agreement: floor of the mean cosine similarity to the original embeddings, in (0, 1). Training maximises robustness
            above it, and the most robust epoch that keeps it on validation images is the result.
        edits: edits to resist instead of an attack, as ``"jpeg,gamma:0.5"``: families of everyday edits or single
            transforms; each image is trained on under the worst of them.
        bank: other images, labelled, whose nearest neighbours are checked after each epoch.
        settings: of the recipe by name, as in ``{"objective": "distillation:clean=0", "batch": 64}``.
        budget: seconds for everything. Training has half of them at most, and without ``epochs`` it takes as many as fit. If
            it ends early, ``out`` holds the encoder so far, which is measured; the same call goes on with both.
        cluster: measure on a Ray cluster: auto, local or its address. Training stays in this process.
        out: folder for encoder and report; with the same folder an interrupted training goes on.

    Raises:
        HoldfastError: the encoder passes no gradient, has no weights or gives one code to all images, there are too few
            images, or something that was named does not exist or does not fit.
        AgreementLostError: training moved the codes of the images kept from it too far; ``out`` holds the encoder of the
            last epoch in which it had not.
    """
    out, seed, device = options["out"], options["seed"], options["device"]
    check_cluster("harden", options["cluster"], out)
    _check_goals(agreement, certified, noise, edits)
    edits = edit_names(edits)
    left = _time_left(budget_start(), options["budget"])
    devices: dict[str, Any] = {name: options[name] for name in ("device", "cluster", "workers")}
    _check_engine(devices)
    RunSettings(device=device)  # refuses what torch does not see
    resisted = ball_of(eps, ball) or (BALL if noise is None else None)
    original, taught, held_out = _read(encoder, images, resisted, options)
    watch, validation = agreement_of(original, held_out, device), held_out
    if agreement is not None:  # what chooses the epoch is neither trained on nor measured with in the end
        taught, validation = parted(taught, None, seed)
    goals: dict[str, Any] = {
        "rate": rate,
        "certified": certified,
        "noise": noise,
        "agreement": agreement,
        "edits": edits,
    }
    recipe_of = partial(recipe_for, original, len(taught), resisted, **goals, seed=seed, settings=settings)
    adversary = recipe_of().adversary
    tried = adversary.names if isinstance(adversary, Edits) else ()  # of --set, too
    if tried:
        CommonPerturbations(edits=tried)  # refuses what could not be measured after the training
    if agreement is not None:
        assert resisted is not None
        resisting = adversary if isinstance(adversary, Edits) else resisted
        watch = watch_of(agreement, original, validation, device, resisting, seed)
    if epochs is None and "epochs" not in (settings or {}):
        epochs = begun_epochs(out)
        if epochs is None and (available := left(TRAINING_SHARE)) is not None:
            epochs = _fitting(available, recipe_of(epochs=None), taught, len(held_out), original, device, watch)
    training: dict[str, Any] = {"bank": bank, "out": out, "progress": options["progress"], "watch": watch}
    hardened, unfinished = _trained(
        recipe_of(epochs=epochs), taught, start=original, device=device, budget=left(TRAINING_SHARE), **training
    )
    if hardened.name == original.name:
        hardened.name = f"{original.name}-hardened"
    measured = _measured(resisted, certified, noise, tried, held_out, bank)
    folder = None if out is None else Path(out) / FOLDER
    given = {**measured, **devices, "seed": seed, "progress": options["progress"]}
    run = evaluate([original, hardened], held_out, **given, budget=left(), out=folder)
    module = hardened.to(device, torch.float32).module
    promise = None if agreement is None else promise_of(agreement, original, held_out, device)(module)
    if promise is not None:
        run = _with_promise(run, promise, original, Population(hardened, held_out, RunSettings(seed, device)))
        if out is not None:
            content = {**asdict(promise), "status": promise.status}
            write_whole(Path(out) / AGREEMENT, json.dumps(content, indent=1).encode())
    return Hardened(hardened, agreement_of(original, held_out, device)(module), run, promise, unfinished)


def _time_left(began: float, budget: float | None) -> Callable[..., float | None]:
    """Return what tells the seconds left of a share of the ``budget``; None if there is no budget."""
    whole = None if budget is None else seconds(budget)
    return lambda share=1.0: None if whole is None else max(began + share * whole - monotonic(), 1e-3)


def _with_promise(run: EvaluatedRun, promise: Promise, original: Encoder, hardened: Population) -> EvaluatedRun:
    """Return ``run`` with the promise as one more result, which its folder and its report then have, too."""
    settings = {"asked": promise.asked, "original": original.fingerprint}
    images, encoder = hardened.images, hardened.encoder
    result = Result(
        evaluation=hardening.NAME,
        version=hardening.VERSION,
        title="Agreement with the original encoder",
        meaning="How similar embeddings of clean images are to those before hardening, on images that training did not use.",
        headline=(hardening.NAME,),
        robustness=False,
        encoder=hardened.encoder_info,
        images=hardened.images_info,
        settings=settings,
        findings=promise.findings(images.ids),
        provenance=provenance(hardened.run, datetime.now(UTC)),
    )
    prints = {"encoder": encoder.fingerprint, "images": images.fingerprint, "precision": hardened.run.precision}
    key = Key(
        kind=hardening.NAME,
        version=hardening.VERSION,
        settings=settings,
        seed=hardened.run.seed,
        name=encoder.name,
        **prints,
    )
    store = Store(run.folder)
    store.expect([Cell(evaluation=hardening.NAME, encoder=encoder.name, result=key.stem, made_from=())])
    store.finish(key, result)
    if run.page is not None:
        write_report(store, run.folder)
    return replace(run, results=(*run.results, result))


def _check_goals(agreement: float | None, certified: bool, noise: float | None, edits: str | Sequence[str]) -> None:
    if certified and noise is not None:
        raise HoldfastError("certified trains against bounds and noise for smoothing; give one of them")
    if agreement is not None and not 0 < agreement < 1:
        raise OutOfRange("agreement", agreement, "between 0 and 1", fix="try 0.9")
    if (certified or noise is not None) and (agreement is not None or edits):
        other = "certified" if certified else "noise"
        raise Conflict("harden", f"{other} with {'agreement' if agreement is not None else 'edits'}", "one of the two")


def _read(
    encoder: NamedEncoder, images: NamedImages, ball: Ball | None, options: HardenOptions
) -> tuple[Encoder, Images, Images]:
    out = None if options["out"] is None else Path(options["out"])
    if out is not None:
        check_trainable(out)
    original = load_encoder(encoder, loading_of(options)).to("cpu", torch.float32)
    if ball is not None:
        ball.check(original.domain)
    scan_cache = ScanCache.at(None if out is None else out / FILE)
    selected = select(images, original.domain, original.geometry, scan_cache=scan_cache)
    taught, held_out = parted(selected, options["limit"], options["seed"])
    _check_gradients(original, taught)
    return original, taught, held_out


def _fitting(available: float, recipe: Recipe, *training: Any) -> int:
    """Return how many epochs of ``recipe`` fit into the time, at most all, and warn if these are fewer."""
    fitting, wanted = epochs_within(available, recipe, *training), recipe.epochs
    if fitting < wanted:
        warnings.warn(
            f"budget: {fitting} of {wanted} epochs fit, and the schedule ends with them. Give a larger budget "
            "or the number of epochs for more",
            HoldfastWarning,
            stacklevel=4,
        )
    return min(fitting, wanted)


def _check_engine(devices: dict[str, Any]) -> None:
    """Refuse what cannot be measured here before hours of training instead of after them.

    Raises:
        HoldfastError: there is no such engine, or it cannot be reached.
    """
    if process_rank()[1] > 1:
        raise HoldfastError(
            "harden runs in one process, since it measures in the end; for several use holdfast train with objective = "
            '"distillation" and adversary = "loss"'
        )
    where = engine_of(**devices, folder=Path())
    if isinstance(where, Ray):
        where.connected()


def _trained(recipe: Recipe, images: Images, **options: Any) -> tuple[Encoder, str]:
    try:
        return train(recipe, images, **options), ""
    except UnfinishedError as error:
        sentence = f"{error}; what is measured now is the encoder so far"
        warnings.warn(sentence, HoldfastWarning, stacklevel=4)
        return error.encoder, str(error)


def _measured(
    ball: Ball | None,
    certified: bool,
    noise: float | None,
    edits: Sequence[str],
    held_out: Images,
    bank: NamedImages | None,
) -> dict[str, Any]:
    if noise is None:
        assert ball is not None
        radius: dict[str, Any] = {"events": ("retrieval",)}
        if not isinstance(ball, Linf):
            radius["widest"] = replace(ball, radius=FAR * ball.radius)
        only = (*ATTACKED, CertifiedRadius.name) if certified else ATTACKED
        measured: dict[str, Any] = {AttackRadius.name: radius}
        if edits:
            only, measured[EDITED] = (*only, EDITED), {"edits": tuple(edits)}
        return {"only": only, "ball": ball, "settings": measured}
    settings = {name: {"sigma": noise, "radii": (noise,)} for name in SMOOTHED}
    if held_out.labels is None or bank is None:
        return {"only": SMOOTHED, "settings": settings}
    settings[RandomizedSmoothing.name] = {"sigma": noise, "radii": (noise, 2 * noise, 3 * noise)}
    return {"only": (*SMOOTHED, RandomizedSmoothing.name), "settings": settings, "bank": bank}


def parted(images: Images, limit: int | None, seed: int) -> tuple[Images, Images]:
    """Return the images to train on and those kept from it, chosen by ``seed`` and their ids, or in whole groups."""
    names = images.ids if images.groups is None else images.groups
    draws = Noise.of(seed, names).fork("held out").uniform((1,), torch.float64)[:, 0]
    order = draws.argsort(stable=True).tolist()  # the images of a group have one draw, and stay together
    order = order if limit is None else order[:limit]
    if len(order) < FEWEST:
        fix = f"one image in {SHARE} is kept to measure with, so add images"
        raise OutOfRange("number of images to harden with", len(order), f"at least {FEWEST}", fix)
    count = min(HELD_OUT, len(order) // SHARE)
    while count < len(order) and names[order[count]] == names[order[count - 1]]:
        count += 1
    if len(order) - count < LEAST_BATCH:
        raise HoldfastError(
            f"of {len(order)} images {count} belong to the groups that are kept to measure with, which leaves fewer than "
            f"a batch of {LEAST_BATCH}; name smaller groups, or leave groups out of the reference"
        )
    return images[order[count:]], images[order[:count]]


def _check_gradients(encoder: Encoder, images: Images) -> None:
    """Raise unless there are weights to train and gradients that reach the pixels."""
    if not any(weight.is_floating_point() for weight in encoder.module.parameters()):
        raise HoldfastError(f"{encoder.name} has no weights that can be trained, so it cannot be hardened")
    pixels = images.pixels([0], domain=encoder.domain).requires_grad_()
    with torch.enable_grad():
        codes = encoder.forward(pixels)
    if not codes.requires_grad:
        raise HoldfastError(
            f"{encoder.name} passes no gradient to its input (detached, quantised or wrapped in no_grad), so it cannot be "
            "hardened; load it in a form that can be trained"
        )
