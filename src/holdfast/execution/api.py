"""What the command line does, as functions of encoders and images that are named or at hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload, runtime_checkable
from weakref import finalize

from rich.console import Console
from torch import Tensor

from holdfast import data
from holdfast import encoders as adapters
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import Preset, read_attack
from holdfast.bounds import Method
from holdfast.core.balls import BALLS, Ball
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning
from holdfast.core.images import Images
from holdfast.core.run import Run
from holdfast.core.settings import read
from holdfast.encoders import Options
from holdfast.execution import certificates
from holdfast.execution.adversarial import Adversarial, AdversarialImages, adversarial
from holdfast.execution.answers import claim, require_free
from holdfast.execution.catalog import objectives
from holdfast.execution.certificates import CertificateRecord, Certificates
from holdfast.execution.evaluated import EvaluatedRun
from holdfast.execution.progress import Shown
from holdfast.execution.request import request
from holdfast.execution.runs import read as read_runs
from holdfast.execution.runs import unfinished
from holdfast.execution.session import MADE_IN_PYTHON, fill_store, limited
from holdfast.execution.store import Store, key_of
from holdfast.execution.table import collect, unfit
from holdfast.objectives.base import Objective
from holdfast.protocol.evaluation import plain
from holdfast.protocol.population import Population
from holdfast.report import gate
from holdfast.report.compare import Comparison
from holdfast.report.compare import compare as compared

P = ParamSpec("P")
T = TypeVar("T")
NamedEncoder = str | Encoder
"""An encoder, or the reference of one: ``timm:resnet50``."""
NamedImages = str | Path | Images | Tensor
"""Images, pixels in [0, 1], or a folder, a file or a reference: ``photos/``, ``hf:user/name``."""
StoredRun = str | Path | EvaluatedRun
"""A run, or the folder of one."""


@runtime_checkable
class ForEachEncoder(Protocol[P, T]):
    """A function of one encoder that takes several as well."""

    @overload
    def __call__(self, encoder: NamedEncoder, /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(
        self, encoder: list[str] | list[Encoder] | tuple[NamedEncoder, ...], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[T]: ...


def for_each_encoder(work: Callable[Concatenate[NamedEncoder, P], T]) -> ForEachEncoder[P, T]:
    """Return ``work`` that takes a list of encoders, too, and then returns a list."""

    @wraps(work)
    def several(encoder: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(encoder, (list, tuple)):
            return [work(one, *args, **kwargs) for one in encoder]
        return work(encoder, *args, **kwargs)

    return several


def load_encoder(
    reference: str, *, arch: str | None = None, size: int | None = None, trust_remote_code: bool = False
) -> Encoder:
    """Return the encoder that ``reference`` names, in the form ``source:name`` or ``mine=source:name?setting=value``.

    Args:
        reference: as on the command line, ``timm:resnet50.a1_in1k`` or ``onnx:model.onnx``.
        arch: ``package.module:factory``, which builds the module of a checkpoint.
        size: height and width of the inputs, instead of the source's own.
        trust_remote_code: whether a model repository may run its own Python code here.
    """
    return adapters.load(reference, Options(arch, size, trust_remote_code))


def load_images(reference: str | Path, encoder: Encoder, *, limit: int | None = None, seed: int = 0) -> Images:
    """Return the images in a folder, a file or a data set as inputs of ``encoder``; ``seed`` chooses ``limit`` of them."""
    return data.load(str(reference), encoder.domain, encoder.geometry, limit=limit, seed=seed)


def evaluate(
    encoders: NamedEncoder | Sequence[NamedEncoder],
    images: NamedImages,
    *,
    bank: NamedImages | None = None,
    only: str | Sequence[str] = (),
    suite: str = "quick",
    eps: str | float | Sequence[str | float] = (),
    ball: str | Ball | Sequence[str | Ball] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    seed: int = 0,
    attack_seed: int | None = None,
    device: str = "cpu",
    precision: str = "float32",
    batch_size: int = 256,
    limit: int | None = None,
    budget: float | None = None,
    workers: int | None = None,
    baselines: str | Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
) -> EvaluatedRun:
    """Return what evaluations find of encoders on unlabelled images, as ``holdfast evaluate`` does.

    Args:
        encoders: one or several, at hand or by reference.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        bank: other images, usually labelled, that probes learn from and retrieval searches.
        only: names of evaluations; all by default.
        suite: how much of each: quick, standard or full.
        eps: radius of a linf ball, or several, instead of the evaluations' own.
        ball: any ball, or several, as ``Linf(8 / 255)`` or ``"l2:0.5"``.
        settings: of evaluations by name, as in ``{"breakaway": {"samples": 500}}``.
        seed: decides which images are looked at, and what is random unless ``attack_seed`` does.
        attack_seed: decides what is random inside attacks and sampling.
        device: where torch computes.
        precision: float32, float64, bfloat16 or float16.
        batch_size: at most so many images at a time; changes no result.
        limit: at most so many images, chosen by ``seed``.
        budget: seconds after which no new work begins.
        workers: compute in so many processes of this machine, with ``cuda`` in one for each GPU; by default in this one.
        baselines: what to measure beside the encoders: pixels, random.
        out: folder of the run; with the same folder an interrupted run continues. By default it is kept in memory.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: something that was named does not exist or does not fit.
    """
    given, images, bank = listed(encoders), at_hand(images), None if bank is None else at_hand(bank)
    own = _by_reference(given)
    with ExitStack() as stack:
        folder = str(out or stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
        asked = request(
            {
                "encoders": [one if isinstance(one, str) else _reference(one) for one in given],
                "images": images if isinstance(images, str) else f"{MADE_IN_PYTHON}:{images.name}",
                "bank": f"{MADE_IN_PYTHON}:{bank.name}" if isinstance(bank, Images) else bank,
                "only": listed(only),
                "suite": suite,
                "eps": listed(eps),
                "ball": [str(one) for one in listed(ball)],
                "settings": {
                    name: {key: plain(value) for key, value in values.items()}
                    for name, values in (settings or {}).items()
                },
                "seed": seed,
                "attack_seed": attack_seed,
                "device": device,
                "precision": precision,
                "batch_size": batch_size,
                "limit": limit,
                "budget": budget,
                "workers": workers,
                "baselines": listed(baselines),
                "out": folder,
            }
        )
        with shown(progress) as show:
            _, results, failures = fill_store(
                asked,
                show,
                own,
                images if isinstance(images, Images) else None,
                bank if isinstance(bank, Images) else None,
            )
        run = EvaluatedRun(tuple(results), tuple(failures), Path(folder))
        finalize(run, stack.pop_all().close)  # what nobody chose a folder for lives as long as the run
    if failures:
        warnings.warn(
            f"{len(failures)} of {len(results) + len(failures)} cells have no result, see run.failures; the first: "
            f"{failures[0].evaluation} of {failures[0].encoder}: {failures[0].reason}",
            HoldfastWarning,
            stacklevel=2,
        )
    if partial := [result for result in results if result.planned is not None]:
        warnings.warn(
            f"{len(partial)} of {len(results) + len(failures)} cells are of fewer samples than planned, because the budget "
            "ended; the same call with out= goes on",
            HoldfastWarning,
            stacklevel=2,
        )
    return run


@for_each_encoder
def certify(
    encoder: NamedEncoder,
    images: NamedImages,
    ball: str | Ball,
    *,
    method: str | Method = "crown",
    negatives: int = 9,
    attack: str | Attack = "adaptive",
    limit: int = 64,
    neurons: int = 50_000,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    batch_size: int = 8,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> CertificateRecord:
    """Return for each image whether no change in ``ball`` makes it more similar to other images, as far as is known.

    Args:
        encoder: one, or a list of them, for which a list of records is returned.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        ball: the changes, as ``Linf(1 / 255)`` or ``"linf:1/255"``.
        method: interval, crown, alpha, branch, semidefinite or exact.
        negatives: how many of the other images each must stay apart from.
        attack: what tries to refute.
        limit: certify at most so many images, chosen by ``seed``.
        neurons: refuse encoders with more nonlinear entries.
        seed: of what is random in attacks and chosen among images.
        device: cpu or cuda; bounds need float64.
        precision: in which witnesses are replayed.
        batch_size: at most so many images at a time.
        out: folder in which certificates and the pixels of witnesses are kept; by default they are not. Several encoders
            need one each.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: the encoder cannot be bounded, or something that was named does not exist or does not fit.
    """
    wanted = Certificates.of(read_ball(ball), limit, negatives, method, attack, neurons)
    population, started = _population(encoder, images, Run(seed, device, precision, batch_size)), datetime.now(UTC)
    with ExitStack() as stack:
        store = Store(Path(out or stack.enter_context(TemporaryDirectory(prefix="holdfast-"))))
        require_free(store.folder)
        claim(store, "certify", key_of(wanted, population.encoder, population.images, population.run))
        show = stack.enter_context(shown(progress))
        _, rows, observed = collect(wanted, population, store, progress=show, codes=False)
        record = certificates.export(population, wanted, rows, observed, store, started)
    if record.contradictions:
        warnings.warn(
            "attacks succeed inside certified balls: trust no certificate of this encoder, and report this",
            HoldfastWarning,
            stacklevel=3,
        )
    if out:
        return record
    lost = [certificate.model_copy(update={"witness": None}) for certificate in record.certificates]
    return record.model_copy(update={"certificates": tuple(lost)})


@for_each_encoder
def attack(
    encoder: NamedEncoder,
    images: NamedImages,
    ball: str | Ball,
    *,
    attack: str | Attack = "adaptive",
    objective: str | Objective = "away",
    limit: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "float32",
    batch_size: int = 256,
    progress: bool | None = None,
) -> Adversarial:
    """Return the images under attack, their codes, and how much each gained.

    Args:
        encoder: one, or a list of them, for which a list is returned.
        images: a folder, a reference, Images, or a tensor (n, *pixels) in [0, 1].
        ball: the allowed changes, as ``Linf(8 / 255)`` or ``"l2:0.5"``.
        attack: how it searches, as in ``"pgd:steps=40"``.
        objective: what it climbs: away, toward, ...
        limit: at most so many images, chosen by ``seed``.
        seed: of what is random in the attack and chosen among images.
        device: where torch computes.
        precision: float32, float64, bfloat16 or float16.
        batch_size: at most so many images at a time.
        progress: show it on stderr; by default in terminals and notebooks.

    Raises:
        HoldfastError: something that was named does not exist or does not fit.
    """
    sought = read(objective, objectives(), "objective") if isinstance(objective, str) else objective
    search = read_attack(attack) if isinstance(attack, str) else attack
    population = _population(encoder, images, Run(seed, device, precision, batch_size), limit)
    wanted = AdversarialImages.of(Preset(sought, search, read_ball(ball), "holdfast.attack"), population)
    with TemporaryDirectory(prefix="holdfast-") as folder, shown(progress) as show:
        population, rows, observed = collect(wanted, population, Store(Path(folder)), progress=show)
    return adversarial(population, wanted, rows, observed)


def compare(runs: StoredRun | Sequence[StoredRun]) -> Comparison:
    """Return which encoders of one or several runs are better, image by image, with what could not be compared.

    Raises:
        HoldfastError: a folder holds no run, or one that cannot be read.
    """
    results, _ = read_runs(folders_of(runs))
    return compared(results)


def check(runs: StoredRun | Sequence[StoredRun], require: str | Sequence[str]) -> tuple[gate.Answer, ...]:
    """Return for each bound, ``breakaway_risk@8/255<=0.05``, and each encoder whether it is kept, and a sentence on it.

    Raises:
        HoldfastError: a bound makes no sense, or a folder holds no run.
    """
    gates, folders = [gate.parse(said) for said in listed(require)], folders_of(runs)
    results, failures = read_runs(folders)
    failures += unfinished(folders, results, failures)
    for said in filter(None, (gate.warning(one, results) for one in gates)):
        warnings.warn(said.removeprefix("warning: "), HoldfastWarning, stacklevel=2)
    return tuple(answer for one in gates for answer in gate.check(one, results, failures))


def listed(given: Any) -> list[Any]:
    """Return what is given once or several times as a list.

    Example:
        >>> listed("8/255"), listed(("8/255", 0.1))
        (['8/255'], ['8/255', 0.1])
    """
    return list(given) if isinstance(given, (list, tuple)) else [given]


def folders_of(given: StoredRun | Sequence[StoredRun]) -> list[Path]:
    """Return the folders of runs."""
    return [one.folder if isinstance(one, EvaluatedRun) else Path(one) for one in listed(given)]


def read_ball(ball: str | Ball) -> Ball:
    """Return the ball that a text spells, or the ball itself."""
    return read(ball, BALLS, "ball") if isinstance(ball, str) else ball


def checked(encoder: object) -> NamedEncoder:
    """Return ``encoder`` if it is one, or a reference."""
    if not isinstance(encoder, (str, Encoder)):
        raise HoldfastError(
            f"an Encoder is needed or its reference, as in 'timm:resnet50', got {type(encoder).__name__}; a module of "
            "your own becomes one as Encoder(module, name, Domain((3, 224, 224)))"
        )
    return encoder


def at_hand(images: object) -> str | Images:
    """Return images that need no loading, or the reference of others."""
    if isinstance(images, Tensor):
        return Images(images)
    if not isinstance(images, (str, Path, Images)):
        raise HoldfastError(
            f"images are a folder, a reference, Images or a tensor in [0, 1], got {type(images).__name__}; "
            "torch.as_tensor makes a tensor of an array"
        )
    return str(images) if isinstance(images, Path) else images


@contextmanager
def shown(progress: bool | None) -> Iterator[Shown | None]:
    """Give what shows progress on stderr: if it is asked for, or where somebody is looking and did not ask for silence."""
    console = Console(stderr=True)
    if progress or (progress is None and (console.is_terminal or console.is_jupyter)):
        with Shown(console) as show:
            yield show
    else:
        yield None


def _by_reference(given: Sequence[NamedEncoder]) -> dict[str, Encoder]:
    """Return the encoders that are at hand by what a request calls them.

    Raises:
        HoldfastError: two are called alike.
    """
    own = [one for one in map(checked, given) if isinstance(one, Encoder)]
    named = {_reference(encoder): encoder for encoder in own}
    if len(named) < len(own):
        names = ", ".join(one.name for one in own)
        raise HoldfastError(f"two of the encoders are called alike ({names}); give each one a name of its own")
    return named


def _reference(encoder: Encoder) -> str:
    """Return what a request calls an encoder that is at hand."""
    own = encoder.source == MADE_IN_PYTHON
    return f"{MADE_IN_PYTHON}:{encoder.name}" if own else f"{encoder.name}={encoder.source}"


def _population(encoder: NamedEncoder, images: NamedImages, run: Run, limit: int | None = None) -> Population:
    """Return the images and the encoder, which is fit to be measured on them."""
    given, checked_encoder = at_hand(images), checked(encoder)
    loaded = load_encoder(checked_encoder) if isinstance(checked_encoder, str) else checked_encoder
    if isinstance(given, str):
        chosen = load_images(given, loaded, limit=limit, seed=run.seed)
    else:
        chosen = limited(given, loaded.domain, limit, run.seed)
    population = Population(loaded, chosen, run)
    if problem := unfit(population):
        raise HoldfastError(f"{loaded.name} cannot be measured: {problem}")
    return population
