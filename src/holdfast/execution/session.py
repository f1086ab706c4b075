"""A request carried out: encoders and images loaded, the table filled, the report written."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from time import monotonic
from typing import TypedDict

import torch

from holdfast import data
from holdfast.core.encoder import MADE_IN_PYTHON, Domain, Encoder, Geometry
from holdfast.core.errors import HoldfastError, HoldfastWarning, did_you_mean
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.data.base import Selection
from holdfast.data.remembered import FILE, Remembered
from holdfast.encoders import load
from holdfast.encoders.baseline import random_init, raw_pixels
from holdfast.encoders.builtin import names
from holdfast.encoders.reference import named
from holdfast.execution.computing import Progress
from holdfast.execution.cost import operations
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.processes import Processes
from holdfast.execution.engines.ranks import LEASES, RANKS, Ranks, leads, place
from holdfast.execution.engines.ray import Ray
from holdfast.execution.request import Request, planned, references, requested_balls
from holdfast.execution.suites import LARGE, share
from holdfast.execution.table import evaluate
from holdfast.protocol.bank import apart
from holdfast.protocol.evaluation import Evaluation
from holdfast.report import write
from holdfast.store.store import Store, StoreError, some

TOUR = "builtin:digits"


@dataclass(frozen=True)
class Outcome:
    """What came of a request."""

    results: Sequence[Result]
    failures: Sequence[Failure]
    report: Path

    @property
    def cells(self) -> int:
        """How many cells were asked for."""
        return len(self.results) + len(self.failures)

    @property
    def partial(self) -> int:
        """How many of the results are of fewer samples than planned, because a budget ended."""
        return sum(result.planned is not None for result in self.results)


def run_request(request: Request, progress: Progress | None = None) -> Outcome:
    """Return what came of ``asked``, with a report of the run's folder.

    Raises:
        HoldfastError: something it names does not exist or cannot be read, or the run's folder cannot be written.
    """
    store, results, failures = fill_store(request, progress)
    return Outcome(results, failures, write_report(store, store.folder))


def fill_store(
    request: Request,
    progress: Progress | None = None,
    encoders_at_hand: Mapping[str, Encoder] | None = None,
    images_at_hand: Images | None = None,
    bank_at_hand: Images | None = None,
) -> tuple[Store, list[Result], list[Failure]]:
    """Return the store of ``asked``, filled, with its results and failures.

    Everything it names is loaded first, so that a wrong name costs no computing. What is at hand, an encoder under its
    reference or the images, is taken instead of loaded.

    Raises:
        HoldfastError: something it names does not exist or cannot be read, or the run's folder cannot be written.
    """
    began, evaluations = monotonic(), planned(request)
    run = RunSettings(
        request.seed,
        precision=request.precision,
        batch_size=request.batch_size,
        attack_seed=request.attack_seed,
        **devices_of(request.cluster, request.device, request.workers),
    )
    reference = images_reference(request)
    store = Store(Path(request.out) if request.out else Path("runs") / f"{_short(reference)}-{request.suite}")
    if damaged := store.damaged():
        warnings.warn(
            f"{some(damaged)} cannot be read (damaged, or of another version of holdfast) and count as never computed; what "
            "this command asks for is computed anew from what else is kept, delete the others",
            HoldfastWarning,
            stacklevel=2,
        )
    encoders = encoders_of(request, encoders_at_hand or {})
    evaluations = sized(request, encoders) or evaluations
    for ball, encoder in product(requested_balls(evaluations), encoders):
        ball.check(encoder.domain)

    remembered = Remembered.at(store.folder / FILE, request.rehash)

    @cache
    def loaded(domain: Domain, geometry: Geometry | None) -> tuple[Images, Images | None]:
        if images_at_hand is not None:
            images = limited(images_at_hand, domain, request.limit, request.seed)
        else:
            images = data.load(
                reference, domain, geometry, limit=request.limit, seed=request.seed, remembered=remembered
            )
        if request.bank is None:
            return images, None
        if bank_at_hand is not None:
            bank = limited(bank_at_hand, domain)
        else:
            bank = data.load(request.bank, domain, geometry, remembered=remembered)
        return images, apart(bank, images)

    def images_for(encoder: Encoder) -> Images:
        return loaded(encoder.domain, encoder.geometry)[0]

    def bank_for(encoder: Encoder) -> Images | None:
        return loaded(encoder.domain, encoder.geometry)[1]

    for encoder in encoders:
        evaluations = labelled(request, evaluations, images_for(encoder), bank_for(encoder))
    computing = engine(request.cluster, request.device, request.workers, store.folder)
    if leads(computing):
        store.request(request.model_dump_json(indent=1))
    results, failures = evaluate(
        encoders,
        images_for,
        evaluations,
        run,
        store,
        computing,
        progress,
        request.budget,
        began,
        bank_for,
    )
    return store, results, failures


def labelled(
    request: Request, evaluations: Sequence[Evaluation], images: Images, bank: Images | None
) -> list[Evaluation]:
    """Return those of ``evaluations`` that these labels, or the lack of them, allow.

    Raises:
        HoldfastError: others were asked for by name.
    """
    lacking = [each.name for each in (images, bank) if each is not None and each.labels is None]
    without = [evaluation.name for evaluation in evaluations if evaluation.needs_labels and lacking]
    if request.only and without:
        raise HoldfastError(
            f"{', '.join(without)} need labels, and {' and '.join(lacking)} have none; give them as in "
            "photos?labels=folders, or as the array labels beside the images"
        )
    return [evaluation for evaluation in evaluations if evaluation.name not in without]


def write_report(store: Store, folder: Path) -> Path:
    """Write the report of everything in ``store`` into ``folder`` and return the path of its page.

    It shows the whole store: an earlier command may have put other encoders there.

    Raises:
        HoldfastError: ``folder`` cannot be written.
    """
    try:
        return write(store.results(), store.failures(), folder)["report.html"]
    except OSError as error:
        raise StoreError(
            f"cannot write the report in {folder}: {error.strerror or error}; all results are kept, "
            "so free some space and run the same command again"
        ) from error


def limited(images: Images, domain: Domain, limit: int | None = None, seed: int = 0) -> Images:
    """Return ``images``, which an encoder with this ``domain`` must be able to read, or ``limit`` of them as loaders choose.

    Raises:
        HoldfastError: they are no inputs for this domain.
    """
    images.pixels([0], domain=domain)
    return images if limit is None else images[Selection(domain, limit=limit, seed=seed).choose(images.ids)]


def sized(request: Request, encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return the plan of quick for large encoders, one for all of them, so that they can be compared; else nothing.

    It follows their operations, not their speed, so that the same command always asks for the same.
    """
    largest = max(operations(encoder) for encoder in encoders) if request.device == "cpu" else 0
    if request.suite != "quick" or largest <= LARGE:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when it was planned first
        plan = planned(request, largest)
    name = next(encoder.name for encoder in encoders if operations(encoder) == largest)
    warnings.warn(
        f"{name} takes {largest / 1e6:,.0f} million operations an image, so quick looks at {100 * share(largest):.2g}% of "
        "the images of others and attacks them less often; --suite standard asks for everything, --device cuda is faster",
        HoldfastWarning,
        stacklevel=2,
    )
    return plan


def encoders_of(request: Request, at_hand: Mapping[str, Encoder]) -> list[Encoder]:
    """Return the encoders that ``asked`` names, the baselines last; two of one name are called by their source.

    Those ``at_hand``, by reference, are not loaded.
    """
    if not request.encoders and request.images not in (None, TOUR):
        raise HoldfastError(f"no encoder to measure on {request.images}; name one, as in timm:resnet50")
    loaded = [at_hand.get(reference) or load(reference, options) for reference, options in references(request)]
    loaded = loaded or [load(f"builtin:{name}") for name in names()]
    encoders = [*loaded, *_baselines(request, loaded)]
    counted = Counter(encoder.name for encoder in encoders)
    return [_called_by_source(encoder) if counted[encoder.name] > 1 else encoder for encoder in encoders]


def _called_by_source(encoder: Encoder) -> Encoder:
    """Return ``encoder`` under another name; one that was made in Python has its own name alone."""
    if encoder.source == MADE_IN_PYTHON:
        return encoder
    renamed = copy(encoder)  # the caller's own keeps its name
    renamed.name = encoder.source
    return renamed


def _baselines(request: Request, encoders: Sequence[Encoder]) -> list[Encoder]:
    kinds = ("pixels", "random")
    for name in request.baselines:
        if name not in kinds:
            raise HoldfastError(f"unknown baseline {name!r}; {did_you_mean(name, list(kinds))}")
    made: list[Encoder] = []
    if "pixels" in request.baselines:
        for encoder in {encoder.domain: encoder for encoder in reversed(encoders)}.values():
            pixels = raw_pixels(encoder.domain)
            pixels.geometry = encoder.geometry  # so that both see the same images
            made.append(pixels)
    if "random" in request.baselines:
        drawn: dict[str, tuple[Encoder, list[str]]] = {}
        for encoder in encoders:
            fresh = random_init(encoder, request.seed)
            drawn.setdefault(fresh.fingerprint, (fresh, []))[1].append(encoder.name)
        for fresh, alike in drawn.values():  # one architecture has one random baseline
            fresh.name = f"{' and '.join(alike)} (random weights)"
            made.append(fresh)
    return made


def images_reference(request: Request) -> str:
    """Return the images that ``asked`` names, or the built-in ones for the built-in encoders."""
    if request.images is None and not all(named(encoder)[1].startswith("builtin:") for encoder in request.encoders):
        raise HoldfastError("no images to measure on; name a folder of them with --images")
    return request.images or TOUR


class Devices(TypedDict, total=False):
    """Those of a run."""

    device: str
    workers: str


def devices_of(cluster: str | None, device: str, workers: int | None = None) -> Devices:
    """Return where a run computes: on ``device``, here or else in workers that alone have it.

    Ranks on one machine take its GPUs in turn, unless one of them is named.
    """
    if cluster == RANKS:
        return Devices(device=f"cuda:{place()[2] % max(1, torch.cuda.device_count())}" if device == "cuda" else device)
    return Devices(device=device) if cluster is None and workers is None else Devices(workers=device)


def engine(cluster: str | None, device: str, workers: int | None, folder: Path) -> Engine:
    """Return what computes shards: this process, so many others here, the ranks that share ``folder``, or a Ray cluster.

    Raises:
        HoldfastError: workers are asked for where they are of no use.
    """
    if workers is not None and (cluster is not None or device not in ("cpu", "cuda")):
        raise HoldfastError(
            "--workers are processes on the CPUs of this machine, or with --device cuda one for each of its GPUs; leave "
            "--cluster and any other --device out, or --workers"
        )
    if workers is not None:
        return Processes(workers, _visible_gpus() if device == "cuda" else ())
    if cluster is None:
        return Local()
    if cluster == RANKS:
        rank, count, _ = place()
        return Ranks(rank, count, folder / LEASES)
    return Ray(cluster, gpus=1.0 if device.startswith("cuda") else 0.0)


def _visible_gpus() -> list[str]:
    """Return the GPUs of this machine as ``CUDA_VISIBLE_DEVICES`` names them."""
    if not (count := torch.cuda.device_count()):
        raise HoldfastError("device 'cuda' was asked for but torch sees no GPU; use --device cpu")
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")[:count]


def _short(reference: str) -> str:
    """Return a word for a folder's name.

    Example:
        >>> _short("builtin:digits"), _short("/data/my photos/?labels=folders")
        ('digits', 'my_photos')
    """
    path = reference.partition("?")[0].rstrip("/")
    return re.sub(r"[^\w.]+", "_", re.split("[/:]", path)[-1]) or "images"
