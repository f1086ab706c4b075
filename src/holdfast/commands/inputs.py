"""What the functions of Python are given: encoders and images at hand or by name, balls as text, one or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload, runtime_checkable

from rich.console import Console
from torch import Tensor

from holdfast.bounds.pairs import require_few
from holdfast.commands.evaluated_run import EvaluatedRun
from holdfast.core.balls import Ball, balls_of
from holdfast.core.encoder import MADE_IN_PYTHON, Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.options import Loading, Picking, takes
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import listed
from holdfast.data import by_name as data
from holdfast.encoders import by_name as encoders
from holdfast.encoders.by_name import Options
from holdfast.measure.population import Population
from holdfast.run import inputs as loading
from holdfast.run.engines.ranks import RANKS
from holdfast.run.progress import Shown

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
    def __call__(self, encoder: NamedEncoder, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def __call__(
        self, encoder: list[str] | list[Encoder] | tuple[NamedEncoder, ...], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]: ...


def for_each_encoder(work: Callable[Concatenate[NamedEncoder, P], T]) -> ForEachEncoder[P, T]:
    """Return ``work`` that takes a list of encoders, too, and then returns a list."""

    @wraps(work)
    def several(encoder: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(encoder, (list, tuple)):
            return [work(each, *args, **kwargs) for each in encoder]
        return work(encoder, *args, **kwargs)

    return several


def refuse_jobs(verb: str, cluster: str | None) -> None:
    """Raise if ``cluster`` asks for Slurm jobs, which carry out a command line again; the command line never gets here.

    Example:
        >>> refuse_jobs("attack", "slurm:ranks=8")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: Slurm jobs repeat a command, which a call in Python is not; write it as ...
    """
    if cluster is not None and not isinstance(cluster, str):
        raise HoldfastError(f"cluster is text: auto, local, ranks or an address, got {cluster!r}")
    if cluster is not None and cluster.partition(":")[0] == "slurm":
        raise HoldfastError(
            "Slurm jobs repeat a command, which a call in Python is not; write it as "
            f"holdfast {verb} --cluster {cluster}, or start the same program on every node with cluster='ranks'"
        )


def require_folder(out: str | Path | None, cluster: str | None) -> None:
    """Raise if ranks are to share the work, and no folder is named in which they meet."""
    if out is None and cluster == RANKS:
        raise HoldfastError("ranks meet in a folder that all of them see; name it as out")


def folders_of(runs: StoredRun | Sequence[StoredRun]) -> list[Path]:
    """Return the folders of runs."""
    if not listed(runs):
        raise HoldfastError("no run was named; expected a folder, or what evaluate returns")
    return [folder_of(run) for run in listed(runs)]


def folder_of(run: StoredRun) -> Path:
    """Return the folder of a run."""
    if not isinstance(run, str | Path | EvaluatedRun):
        raise HoldfastError(f"runs are folders, or what evaluate returns, got {run!r}")
    return run.folder if isinstance(run, EvaluatedRun) else Path(run)


def ball_of(eps: str | float | None, ball: str | Ball | None) -> Ball | None:
    """Return the ball that a radius or a ball names, if one of them is given.

    Example:
        >>> str(ball_of("2/255", None)), str(ball_of(None, "l2:0.5")), ball_of(None, None)
        ('linf:2/255', 'l2:0.5', None)
    """
    return next(iter(balls_of([] if eps is None else [eps], [] if ball is None else [ball])), None)


@takes(Loading)
def load_encoder(reference: str, **options: Unpack[Loading]) -> Encoder:
    """Return the encoder that ``reference`` names, in the form ``source:name`` or ``mine=source:name?setting=value``.

    Args:
        reference: as on the command line, ``timm:resnet50.a1_in1k`` or ``onnx:model.onnx``.
        **options: as other verbs take them.
    """
    return encoders.load(reference, loading_of(options))


@takes(Picking)
def load_images(reference: str | Path, encoder: Encoder, **options: Unpack[Picking]) -> Images:
    """Load a folder, a file or a data set of images as inputs of ``encoder``.

    Args:
        reference: Folder, file or reference of a data set.
        encoder: Encoder that decides size and range of the inputs.
    """
    if not isinstance(reference, str | Path):
        raise HoldfastError(f"images are named by a folder, a file or a reference, got {type(reference).__name__}")
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"images are loaded for an Encoder, got {type(encoder).__name__}; load_encoder makes one")
    return data.load(str(reference), encoder.domain, encoder.geometry, **options)


def population_of(
    encoder: NamedEncoder,
    images: NamedImages,
    run: RunSettings,
    options: Options,
    limit: int | None = None,
    neurons: int | None = None,
) -> Population:
    """Return the images, at most ``limit`` of them, and the encoder, both at hand or loaded.

    Raises:
        HoldfastError: something cannot be loaded, or the encoder has more nonlinear entries than ``neurons``.
    """
    named, loaded = at_hand(images), loading.load_encoder(checked(encoder), options)
    if neurons is not None:
        require_few(loaded, neurons)
    chosen = loading.select(named, loaded.domain, loaded.geometry, limit=limit, seed=run.seed)
    return Population(loaded, chosen, run)


def loading_of(options: Loading) -> Options:
    """Return what the ``options`` of a verb say of every encoder that is loaded."""
    return Options(options["arch"], options["size"], options["trust_remote_code"])


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


def by_reference(encoders: Sequence[NamedEncoder]) -> dict[str, Encoder]:
    """Return the encoders that are at hand by what a request calls them.

    Raises:
        HoldfastError: two are called alike.
    """
    at_hand = [encoder for encoder in map(checked, encoders) if isinstance(encoder, Encoder)]
    named = {reference_of(encoder): encoder for encoder in at_hand}
    if len(named) < len(at_hand):
        names = ", ".join(encoder.name for encoder in at_hand)
        raise HoldfastError(f"two of the encoders are called alike ({names}); give each one a name of its own")
    return named


def reference_of(named: NamedEncoder | Images) -> str:
    """Return what a request calls an encoder or images: a reference is itself, and what is at hand has a name.

    Example:
        >>> import torch
        >>> reference_of("timm:resnet50"), reference_of(Images(torch.zeros(1, 1, 2, 2), name="grey"))
        ('timm:resnet50', 'python:grey')
    """
    if isinstance(named, Images):
        return f"{MADE_IN_PYTHON}:{named.name}"
    encoder = checked(named)
    if isinstance(encoder, str):
        return encoder
    made_in_python = encoder.source == MADE_IN_PYTHON
    return f"{MADE_IN_PYTHON}:{encoder.name}" if made_in_python else f"{encoder.name}={encoder.source}"
