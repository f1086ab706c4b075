"""A request carried out: encoders and images loaded, and the table filled."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from holdfast.bounds.network.size import nonlinear_entries
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.core.operations import operations
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.core.stopwatch import beginning
from holdfast.data.reading.remembered import FILE, Remembered
from holdfast.encoders.embeddings import Embeddings
from holdfast.execution.computing import Computing, Progress
from holdfast.execution.computing.cost import Forecast
from holdfast.execution.engines.automatic import automatic
from holdfast.execution.engines.base import Engine
from holdfast.execution.engines.local import Local
from holdfast.execution.engines.processes import Processes
from holdfast.execution.engines.ranks import LEASES, RANKS, Ranks, leads, place
from holdfast.execution.engines.ray import Ray
from holdfast.execution.request import Request, build, planned, requested_balls
from holdfast.execution.request.informative_radii import changed, informative_radii, left_open
from holdfast.execution.request.loading import NOTHING, AtHand, Inputs
from holdfast.execution.request.suites import HEAVY, LARGE, TOTAL, share
from holdfast.execution.table import evaluate, refuse_same_names
from holdfast.execution.table.interim import WriteReport
from holdfast.protocol.evaluation import Evaluation, answerable, settings
from holdfast.protocol.population import Population
from holdfast.report.text import listed
from holdfast.store.store import Store, some

EARLIER = " Earlier results in this folder are of other radii and stay beside these."
THREADED = 400_000_000
"""Bytes of weights above which one process with many threads computes an encoder: a copy in each worker fills the memory."""
WANTS_MORE = (
    "that takes changed images, the network, or what the codes were computed from (for spade, inputs=FILE names it)"
)
"""What stored codes are not enough for."""
Workers = int | Literal["auto"] | None
"""How many processes compute; ``auto``: as many as are of use; None or 1: this one."""


@dataclass(frozen=True)
class Session:
    """A request with everything it needs: nothing of it can be wrong any more, and nothing is computed yet."""

    request: Request
    run: RunSettings
    inputs: Inputs
    plan: Sequence[Evaluation]
    store: Store
    began: float
    """When its budget began to run, by ``time.monotonic``."""

    @classmethod
    def of(cls, request: Request, store: Store, at_hand: AtHand = NOTHING) -> Session:
        """Return the session of ``request`` whose results go to ``store``; what is ``at_hand`` is not loaded.

        Raises:
            HoldfastError: something it names does not exist, cannot be read or does not fit.
        """
        began, plan, run = beginning(), planned(request), run_settings(request)
        _warn_of_damage(store)
        inputs = Inputs.of(request, at_hand, Remembered.at(store.folder / FILE, request.rehash))
        refuse_same_names(inputs.encoders)
        plan = among(request, sized(request, inputs.encoders) or plan, inputs.encoders)
        for ball, encoder in product(requested_balls(plan), inputs.encoders):
            ball.check(encoder.domain)
        plan = tagged(plan, inputs.encoders)
        for encoder in inputs.encoders:
            plan = labelled(request, plan, inputs.images(encoder), inputs.bank(encoder))
        plan = within_reach(request, answered(plan, inputs), inputs.encoders)
        return cls(request, run, inputs, plan, store, began)

    def fill(
        self,
        progress: Progress | None = None,
        write: WriteReport | None = None,
        say: Callable[[str], None] | None = None,
    ) -> tuple[list[Result], list[Failure]]:
        """Return the results and failures of all cells, which the store then holds.

        Args:
            progress: is told how far things are.
            write: writes a report while the run goes on.
            say: is told, before the work begins, how long it will take.

        Raises:
            HoldfastError: the store cannot be written.
            KeyboardInterrupt: somebody stopped it; the store then holds what follows from what was seen.
        """
        request = self.request
        computing = engine(request.cluster, request.device, request.workers, self.store.folder)
        if leads(computing):
            self.store.request(request.model_dump_json(indent=1))
        plan, radii = self.in_informative_balls(computing, progress)
        if say and radii and leads(computing):
            say(radii)
        return evaluate(
            self.inputs.encoders,
            self.inputs.images,
            plan,
            self.run,
            self.store,
            computing,
            progress,
            request.budget,
            self.began,
            self.inputs.bank,
            write if leads(computing) else None,
            say if leads(computing) else None,
            radii,
        )

    def in_informative_balls(self, computing: Engine, progress: Progress | None) -> tuple[Sequence[Evaluation], str]:
        """Return the plan with radii that tell the encoders apart where nobody named any, and a sentence on them."""
        free = left_open(self.request, self.plan)
        if not free:
            return self.plan, ""
        work = Computing(self.store, computing, progress, None, self.began, Forecast({}))
        chosen = informative_radii(self.request, free, self.inputs, self.run, work)
        if chosen is None:
            return self.plan, ""
        plan = [chosen.of(evaluation) if evaluation in free else evaluation for evaluation in self.plan]
        earlier = EARLIER if changed(self.store.results(), plan) else ""
        return plan, chosen.sentence + earlier


def run_settings(request: Request) -> RunSettings:
    """Return the seeds, the devices, the precision and the batch size of ``request``."""
    return RunSettings(
        request.seed,
        precision=request.precision,
        batch_size=request.batch_size,
        attack_seed=request.attack_seed,
        **devices_of(request.cluster, request.device, request.workers),
    )


def _warn_of_damage(store: Store) -> None:
    if damaged := store.damaged():
        warnings.warn(
            f"{some(damaged)} cannot be read (damaged, or of another version of holdfast) and count as never computed; what "
            "this command asks for is computed anew from what else is kept, delete the others",
            HoldfastWarning,
            stacklevel=2,
        )


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


def tagged(evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return ``evaluations`` with the tags that stored codes bring, where they take tags and none are set.

    Raises:
        HoldfastError: two files of tags are named.
    """
    files = list(
        dict.fromkeys(encoder.tags for encoder in encoders if isinstance(encoder, Embeddings) and encoder.tags)
    )
    if len(files) > 1:
        raise HoldfastError(
            f"tags are of images, not of codes, and two files of them are named ({', '.join(files)}); keep one"
        )
    return [
        build(type(each), {**settings(each), "tags": files[0]}) if files and getattr(each, "tags", "") is None else each
        for each in evaluations
    ]


def answered(evaluations: Sequence[Evaluation], inputs: Inputs) -> list[Evaluation]:
    """Return those of ``evaluations`` that at least one encoder can be asked, and say what stored codes cannot answer.

    Raises:
        HoldfastError: none is left.
    """
    by_encoder = {
        encoder.name: [each for each in evaluations if answerable(each, encoder, inputs.images(encoder))]
        for encoder in inputs.encoders
    }
    alike: dict[tuple[str, ...], list[str]] = {}
    for encoder in inputs.encoders:
        silent = tuple(each.name for each in evaluations if each not in by_encoder[encoder.name])
        alike.setdefault(silent, []).append(encoder.name)
    for silent, named in alike.items():
        if not silent:
            continue
        sentence = f"codes alone are known of {listed(named)}, which cannot answer {listed(list(silent))}: {WANTS_MORE}"
        if not any(by_encoder.values()):
            raise HoldfastError(f"{sentence}; name the encoder that made them")
        warnings.warn(sentence, HoldfastWarning, stacklevel=3)
    return [each for each in evaluations if any(each in answers for answers in by_encoder.values())]


def within_reach(request: Request, evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return ``evaluations`` without bounds of networks that are all too large for them, unless asked for by name."""
    neurons = [each.name for each in evaluations if hasattr(each, "neurons")]
    if request.only or not neurons:
        return list(evaluations)
    largest = max(getattr(each, "neurons", 0) for each in evaluations)
    if min(map(operations, encoders)) <= largest:  # an entry takes an operation at least
        return list(evaluations)
    entries = {encoder.name: nonlinear_entries(encoder) for encoder in encoders}
    if min(entries.values()) <= largest:
        return list(evaluations)
    sizes = listed([f"{name} has at least {count:,}" for name, count in entries.items()])
    warnings.warn(
        f"{listed(neurons)} are left out: they bound networks of up to {largest:,} nonlinear entries, and {sizes}; center, "
        "feature and randomized smoothing certify any encoder, by noisy copies",
        HoldfastWarning,
        stacklevel=3,
    )
    return [each for each in evaluations if each.name not in neurons]


def among(request: Request, evaluations: Sequence[Evaluation], encoders: Sequence[Encoder]) -> list[Evaluation]:
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


def sized(request: Request, encoders: Sequence[Encoder]) -> list[Evaluation]:
    """Return the plan of quick for large encoders, one for all of them, so that they can be compared; else nothing.

    It follows their operations, not their speed, so that the same command always asks for the same.
    """
    largest = max(operations(encoder) for encoder in encoders) if request.device == "cpu" else 0
    if request.suite != "quick" or largest <= LARGE:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when it was planned first
        plan, whole = planned(request, largest), planned(request)
    name = next(encoder.name for encoder in encoders if operations(encoder) == largest)
    kinds = {type(evaluation) for evaluation in plan}
    missing = "".join(f", and leaves {each.name} out" for each in whole if type(each) not in kinds)
    warnings.warn(
        f"{name} takes {largest / 1e6:,.0f} million operations an image, so quick {_less(largest)}{missing}; --suite "
        "standard asks for everything, --device cuda is faster",
        HoldfastWarning,
        stacklevel=2,
    )
    return plan


def _less(operations: int) -> str:
    """Return what quick asks of an encoder of so many operations."""
    if operations >= HEAVY:
        return f"asks for {TOTAL:,} forwards of it at most, a gradient counted as three, and attacks 30 images"
    return f"looks at {100 * share(operations):.2g}% of the images of others and attacks them less often"


class Devices(TypedDict, total=False):
    """Those of a run."""

    device: str
    workers: str


def devices_of(cluster: str | None, device: str, workers: Workers = None) -> Devices:
    """Return where a run computes: on ``device``, here or else in workers that alone have it.

    Ranks on one machine take its GPUs in turn, unless one of them is named.
    """
    if cluster == RANKS:
        return Devices(device=f"cuda:{place()[2] % max(1, torch.cuda.device_count())}" if device == "cuda" else device)
    return Devices(device=device) if cluster is None and not _several(workers) else Devices(workers=device)


def engine(cluster: str | None, device: str, workers: Workers, folder: Path) -> Engine:
    """Return what computes shards: this process, so many others here, the ranks that share ``folder``, or a Ray cluster.

    Raises:
        HoldfastError: workers are asked for where they are of no use.
    """
    if isinstance(workers, int) and (cluster is not None or device not in ("cpu", "cuda")):
        raise HoldfastError(
            "--workers are processes on the CPUs of this machine, or with --device cuda one for each of its GPUs; leave "
            "--cluster and any other --device out, or --workers"
        )
    if isinstance(workers, int) and workers != 1:
        return Processes(workers, _visible_gpus() if device == "cuda" else ())
    if cluster is None:
        return automatic(threaded) if workers == "auto" and device == "cpu" else Local()
    if cluster == RANKS:
        rank, count, _ = place()
        return Ranks(rank, count, folder / LEASES)
    return Ray(cluster, gpus=1.0 if device.startswith("cuda") else 0.0)


def threaded(context: Any) -> bool:
    """Return whether tasks in ``context`` are left to this process's threads.

    So it is if its encoder has too many weights, and of codes that were computed elsewhere: a worker wants a copy of
    every id and has next to nothing to do.
    """
    if not isinstance(context, Population):
        return False
    return context.encoder.recorded or sum(weights.nbytes for weights in context.encoder.module.parameters()) > THREADED


def _several(workers: Workers) -> bool:
    """Return whether somebody asked for several processes."""
    return isinstance(workers, int) and workers > 1


def _visible_gpus() -> list[str]:
    """Return the GPUs of this machine as ``CUDA_VISIBLE_DEVICES`` names them."""
    if not (count := torch.cuda.device_count()):
        raise HoldfastError("device 'cuda' was asked for but torch sees no GPU; use --device cpu")
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")[:count]
