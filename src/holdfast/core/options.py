"""Options that several verbs share, each declared once: for Python, the command line and TOML. Loads no torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, cast, get_args, get_type_hints

from holdfast.core.errors import HoldfastError, did_you_mean, refuse_blanks

P = ParamSpec("P")
T = TypeVar("T")
COMPUTES = "How it is computed"
"""The panel of ``--help`` with flags that change no result, or only its rounding."""
Workers = int | Literal["auto"] | None
"""How many processes compute; ``auto``: as many as are of use; None or 1: this one."""


@dataclass(frozen=True)
class Option:
    """What is said of an option, once, beside its type."""

    help: str
    default: Any = None
    panel: str | None = None
    least: int | None = None
    """The least value that the command line takes."""
    python: str = ""
    """What docstrings say, where it differs from ``help``."""


# What is looked at.
Limit = Annotated[int | None, Option("At most so many images, chosen by the seed.", least=1)]
Seed = Annotated[int, Option("Decides every random choice.", 0)]
Arch = Annotated[str | None, Option("package.module:factory, for checkpoints.")]
Size = Annotated[int | None, Option("Input height and width, instead of the encoder's own.")]
TrustRemoteCode = Annotated[bool, Option("Let a model repository run its own code.", False)]

# How it is computed.
Device = Annotated[str, Option("cpu, cuda, cuda:1, mps.", "cpu", COMPUTES)]
Precision = Annotated[str, Option("float32, float64, bfloat16, float16.", "float32", COMPUTES)]
BatchSize = Annotated[int, Option("At most so many images at a time.", 256, COMPUTES, least=1)]
Budget = Annotated[float | None, Option("Seconds after which no new work begins.", None, COMPUTES)]
Cluster = Annotated[
    str | None,
    Option(
        "Compute on a Ray cluster (auto, local or its address) or as Slurm jobs (slurm:ranks=8).",
        panel=COMPUTES,
        python="compute on a Ray cluster: auto, local or its address; or ``ranks``, started by torchrun or srun.",
    ),
]
Processes = Annotated[
    Workers,
    Option(
        "Compute in so many processes of this machine, or on so many of its GPUs; auto: as many as pay.",
        "auto",
        COMPUTES,
    ),
]

# What is left of it, and what is shown.
Out = Annotated[
    str | Path | None,
    Option(
        "Folder of the run and its report, for check; running again continues it.",
        python="folder of the run with its report, for ``check``; running again continues it. By default nothing is kept.",
    ),
]
Progress = Annotated[bool | None, Option("Show it on stderr; by default in terminals and notebooks.")]


class Seeding(TypedDict, total=False):
    """What is drawn."""

    seed: Seed


class Picking(TypedDict, total=False):
    """Which images are looked at."""

    limit: Limit
    seed: Seed


class Loading(TypedDict, total=False):
    """How encoders by reference are loaded."""

    arch: Arch
    size: Size
    trust_remote_code: TrustRemoteCode


class Running(TypedDict, total=False):
    """Where one process computes, with what and until when."""

    device: Device
    precision: Precision
    batch_size: BatchSize
    budget: Budget


class Sharing(TypedDict, total=False):
    """Which other machines share the work."""

    cluster: Cluster


class Keeping(TypedDict, total=False):
    """Who computes on this machine, what is left of a run, and what is shown of it."""

    workers: Processes
    out: Out
    progress: Progress


class LocalOptions(Picking, Loading, Running, Keeping, total=False):
    """The options of a verb that measures encoders on this machine."""


class RunOptions(Picking, Loading, Running, Sharing, Keeping, total=False):
    """The options of a verb that measures encoders on images."""


class CertifyOptions(Seeding, Loading, Running, Sharing, Keeping, total=False):
    """Those of ``certify``, which always has a limit."""


class EvaluateOptions(Picking, Running, Sharing, Keeping, total=False):
    """Those of ``evaluate``, which takes an ``arch`` for each checkpoint."""

    size: Size
    trust_remote_code: TrustRemoteCode


class DoctorOptions(Loading, total=False):
    """Those of ``doctor``, which computes a few codes."""

    device: Device
    precision: Precision


class Training(TypedDict, total=False):
    """Where an encoder is trained, and until when; its recipe has a precision and a batch of its own."""

    device: Device
    budget: Budget


class HardenOptions(Picking, Loading, Training, Sharing, Keeping, total=False):
    """Those of ``harden``."""


class TrainOptions(TypedDict, total=False):
    """Those of ``train``, whose recipe has a seed, a precision and a batch, and may name a device."""

    size: Size
    limit: Limit
    budget: Budget
    out: Out
    progress: Progress


class CorruptOptions(Picking, total=False):
    """Those of ``corrupt``, which needs no encoder."""

    batch_size: BatchSize
    cluster: Cluster
    workers: Processes
    progress: Progress


class Observing(Running, Keeping, total=False):
    """What decides where a verb computes, and where it goes."""


UNFINISHED = "Seconds after which training stops with a checkpoint; the same command goes on."
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "attack": {"limit": {"default": 64}, "workers": {"default": None}},
    "certify": {
        "device": {"help": "cpu or cuda; bounds need float64."},
        "precision": {"help": "In which the encoder is executed: float32, bfloat16 ..."},
        "batch_size": {"default": 8},
        "workers": {"default": None},
    },
    "corrupt": {"batch_size": {"default": 64}, "workers": {"default": None}},
    "drift": {"limit": {"help": "At most so many images of each set, chosen by the seed."}},
    "evaluate": {
        "batch_size": {"help": "At most so many images at a time; changes no result."},
        "budget": {"help": "Seconds for everything: all have their share, and what is seen by then is reported."},
    },
    "harden": {"budget": {"help": UNFINISHED}},
    "parity": {"workers": {"default": None}},
    "train": {"budget": {"help": UNFINISHED}, "size": {"help": "Height and width of the inputs.", "least": 1}},
}
"""What verbs say otherwise, by verb and option: another default, other words."""


@cache
def declared(kind: type, verb: str) -> Mapping[str, tuple[Any, Option]]:
    """Return the type and the declaration of each option of ``kind``, as ``verb`` has it."""
    options = {name: get_args(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    return {name: (of, _changed(option, OWN.get(verb, {}).get(name, {}))) for name, (of, option) in options.items()}


def _changed(option: Option, changes: Mapping[str, Any]) -> Option:
    """Return ``option`` with ``changes``: where it is explained in other words, docstrings say them too."""
    return replace(option, **{"python": "" if "help" in changes else option.python, **changes})


def takes(kind: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a verb take the options of ``kind`` as keywords: it is given all of them, and shows them in its signature.

    The docstring of the verb explains only what is its own; the other options are added to it.

    Raises:
        HoldfastError: the verb was called with a keyword that it does not have, or an empty text.
    """

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        options = declared(kind, verb.__name__)
        defaults = {name: option.default for name, (_, option) in options.items()}
        own = inspect.signature(verb)
        ahead = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        behind = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=of)
            for name, (of, _) in options.items()
        ]
        whole = own.replace(parameters=[*ahead, *behind])

        @wraps(verb)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            if unknown := [name for name in kwargs if name not in whole.parameters]:
                hint = did_you_mean(unknown[0], list(whole.parameters))
                raise HoldfastError(f"{verb.__name__} has no argument {unknown[0]!r}; {hint}")
            refuse_blanks(whole.bind(*args, **kwargs).arguments)
            return verb(*args, **cast(Any, {**defaults, **kwargs}))

        called.__signature__ = whole  # type: ignore[attr-defined]
        called.__doc__ = explained(inspect.getdoc(verb) or "", options)
        return called

    return decorate


def explained(text: str, options: Mapping[str, tuple[Any, Option]]) -> str:
    """Return the docstring ``text`` with all ``options`` below ``Args:``, those that it explains itself in its words."""
    before, args, rest = text.partition("Args:\n")
    block, end, after = rest.partition("\n\n")
    entries = {entry.partition(":")[0].strip(): entry.rstrip() for entry in re.split(r"\n(?= {4}\S)", block)}
    entries.pop("**options", None)
    for name, (_, option) in options.items():
        words = option.python or option.help[:1].lower() + option.help[1:]
        given = fill(f"{name}: {words}", 120, initial_indent=" " * 4, subsequent_indent=" " * 8)
        entries[name] = entries.pop(name, given)  # at the end, as in the signature
    return before + args + "\n".join(entries.values()) + end + after if args else text
