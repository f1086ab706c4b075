"""Options that several commands share, declared once for Python, the command line and TOML. Loads no torch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, cast, get_args, get_type_hints

from holdfast.core.errors import UnknownName, check_no_blanks

P = ParamSpec("P")
T = TypeVar("T")
INPUT, MEASURED, OUTPUT, COMPUTE, ADVANCED = PANELS = ("Input", "What to measure", "Output", "Compute", "Advanced")
"""Panels of ``--help``, in their order."""
Workers = int | Literal["auto"] | None
"""Number of worker processes; ``auto``: as many as speed the run up; None or 1: this process only."""


@dataclass(frozen=True)
class Option:
    """Help text, default and presentation of an option."""

    help: str
    """Sentence of ``--help``: verb, unit or format, default or range; at most 12 words."""
    default: Any = None
    panel: str | None = None
    """Panel of ``--help``, one of ``PANELS``."""
    metavar: str | None = None
    """Unit or form of the value, as in SECONDS."""
    least: int | None = None
    """Smallest value that the command line accepts."""
    python: str = ""
    """Text for docstrings, where it differs from ``help``."""


# Input.
Limit = Annotated[
    int | None, Option("Use at most N images, sampled with --seed (default: all).", None, INPUT, "N", least=1)
]
Subset = Annotated[
    str | None,
    Option(
        "Use a subset by labels: long-tail:most=5000,least=50, uniform:total=N, classes:count=N, like:IMAGES.",
        None,
        INPUT,
        "SUBSET",
        python="subset by labels of the images that ``limit`` leaves: ``long-tail:most=5000,least=50``, "
        "``uniform:total=N``, ``classes:count=N`` or ``like:IMAGES``.",
    ),
]
Arch = Annotated[
    str | None, Option("Build the module of a checkpoint with this factory.", None, INPUT, "MODULE:FACTORY")
]
Size = Annotated[int | None, Option("Resize inputs to N × N pixels (default: the encoder's size).", None, INPUT, "N")]

# Output.
Out = Annotated[
    str | Path | None,
    Option(
        "Write the run and its report here; rerun to continue.",
        None,
        OUTPUT,
        "DIR",
        python="folder of the run and its report, readable by ``check``; rerun to continue (default: keep nothing).",
    ),
]
Progress = Annotated[bool | None, Option("Show progress on stderr (default: in terminals and notebooks).")]

# Compute.
Device = Annotated[str, Option("Compute on cpu, cuda, cuda:1 or mps.", "cpu", COMPUTE, "DEVICE")]
Precision = Annotated[str, Option("Compute in float32, float64, bfloat16 or float16.", "float32", COMPUTE, "TYPE")]
BatchSize = Annotated[int, Option("Process at most N images at a time.", 256, COMPUTE, "N", least=1)]
Budget = Annotated[
    float | None, Option("Start no new work after this many seconds (default: unlimited).", None, COMPUTE, "SECONDS")
]
Processes = Annotated[
    Workers,
    Option(
        "Use N worker processes, or GPUs with --device cuda.",
        "auto",
        COMPUTE,
        "N|auto",
        python="number of worker processes, or GPUs with cuda; ``auto``: as many as speed the run up; None: this process.",
    ),
]

# Advanced.
Seed = Annotated[
    int, Option("Seed every random choice with N.", 0, ADVANCED, "N", python="seed of every random choice.")
]
Cluster = Annotated[
    str | None,
    Option(
        "Use Ray (auto, local, ADDRESS) or Slurm jobs (slurm:ranks=8).",
        None,
        ADVANCED,
        "CLUSTER",
        python="Ray cluster (``auto``, ``local`` or its address), or ``ranks`` under torchrun or srun.",
    ),
]
TrustRemoteCode = Annotated[bool, Option("Allow a model repository to run its own code.", False, ADVANCED)]


class Seeding(TypedDict, total=False):
    """Seed of random choices."""

    seed: Seed


class Picking(TypedDict, total=False):
    """Choice of images."""

    limit: Limit
    seed: Seed


class Loading(TypedDict, total=False):
    """Loading of encoders by name."""

    arch: Arch
    size: Size
    trust_remote_code: TrustRemoteCode


class Running(TypedDict, total=False):
    """Device, precision, batch size and time budget of a process."""

    device: Device
    precision: Precision
    batch_size: BatchSize
    budget: Budget


class Sharing(TypedDict, total=False):
    """Other machines that share the work."""

    cluster: Cluster


class Keeping(TypedDict, total=False):
    """Worker processes, output folder and progress display."""

    workers: Processes
    out: Out
    progress: Progress


class LocalOptions(Picking, Loading, Running, Keeping, total=False):
    """Options of a command that measures encoders on this machine."""


class RunOptions(Picking, Loading, Running, Sharing, Keeping, total=False):
    """Options of a command that measures encoders on images."""


class CertifyOptions(Seeding, Loading, Running, Sharing, Keeping, total=False):
    """Options of ``certify``, which always has a limit."""


class EvaluateOptions(Picking, Running, Sharing, Keeping, total=False):
    """Options of ``evaluate``, which accepts one ``arch`` per checkpoint."""

    size: Size
    trust_remote_code: TrustRemoteCode


class DoctorOptions(Loading, total=False):
    """Options of ``doctor``, which computes a few embeddings."""

    device: Device
    precision: Precision


class CanaryOptions(Picking, Loading, total=False):
    """Options of ``canary``, which computes few embeddings."""

    device: Device
    precision: Precision
    batch_size: BatchSize


class Training(TypedDict, total=False):
    """Device and time budget of training; precision and batch size are settings of the recipe."""

    device: Device
    budget: Budget


class HardenOptions(Picking, Loading, Training, Sharing, Keeping, total=False):
    """Options of ``harden``."""


class TrainOptions(TypedDict, total=False):
    """Options of ``train``; seed, precision, batch size and device are settings of the recipe."""

    size: Size
    limit: Limit
    subset: Subset
    budget: Budget
    out: Out
    progress: Progress


class CorruptOptions(Picking, total=False):
    """Options of ``corrupt``, which needs no encoder."""

    subset: Subset
    batch_size: BatchSize
    cluster: Cluster
    workers: Processes
    progress: Progress


UNFINISHED = "Stop after this many seconds with a checkpoint; rerun to continue."
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "attack": {
        "limit": {"default": 64, "help": "Use at most N images, sampled with --seed."},
        "workers": {"default": None},
    },
    "canary": {
        "limit": {"default": 32, "help": "Keep N images, sampled with --seed."},
        "precision": {
            "default": None,
            "help": "Compute in this precision, or check with its tolerance (default: float32).",
        },
    },
    "certify": {
        "device": {"help": "Compute on cpu or cuda; bounds need float64."},
        "precision": {"help": "Run the encoder in float32, float64, bfloat16 or float16."},
        "batch_size": {"default": 8},
        "workers": {"default": None},
    },
    "corrupt": {"batch_size": {"default": 64}, "workers": {"default": None}},
    "drift": {"limit": {"help": "Use at most N images per set, sampled with --seed."}},
    "evaluate": {
        "batch_size": {"help": "Process at most N images at a time; results stay equal."},
        "budget": {"help": "Stop after this many seconds and report partial results."},
    },
    "harden": {"budget": {"help": UNFINISHED}},
    "parity": {"workers": {"default": None}},
    "train": {
        "budget": {"help": UNFINISHED},
        "limit": {"help": "Use at most N images, sampled with the recipe's seed (default: all)."},
        "size": {"help": "Resize inputs to N × N pixels.", "least": 1},
    },
}
"""Defaults and help texts that differ for one command, by command and option."""


@cache
def declared(kind: type, verb: str) -> Mapping[str, tuple[Any, Option]]:
    """Type and declaration of each option, with the changes of one command."""
    options = {name: get_args(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    for name, (of, option) in options.items():
        changes = OWN.get(verb, {}).get(name, {})  # a changed help text also changes docstrings
        options[name] = of, replace(option, **{"python": "" if "help" in changes else option.python, **changes})
    return options


def defaults(kind: type, verb: str) -> dict[str, Any]:
    """Default of each option of a command."""
    return {name: option.default for name, (_, option) in declared(kind, verb).items()}


def takes(kind: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that adds the options of ``kind`` to signature and docstring of a function.

    Raises:
        HoldfastError: a call has an unknown keyword or an empty text.
    """

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        options, given = declared(kind, verb.__name__), defaults(kind, verb.__name__)
        own = inspect.signature(verb)
        ahead = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        behind = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given[name], annotation=of)
            for name, (of, _) in options.items()
        ]
        whole = own.replace(parameters=[*ahead, *behind])

        @wraps(verb)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            if unknown := [name for name in kwargs if name not in whole.parameters]:
                raise UnknownName(f"argument of {verb.__name__}", unknown[0], whole.parameters)
            check_no_blanks(whole.bind(*args, **kwargs).arguments)
            return verb(*args, **cast(Any, {**given, **kwargs}))

        called.__signature__ = whole  # type: ignore[attr-defined]
        called.__doc__ = explained(inspect.getdoc(verb) or "", options)
        return called

    return decorate


def explained(text: str, options: Mapping[str, tuple[Any, Option]]) -> str:
    """Add entries for ``options`` to a docstring that lists its arguments; old entries stay."""
    before, args, rest = text.partition("Args:\n")
    block, end, after = rest.partition("\n\n")
    entries = {entry.partition(":")[0].strip(): entry.rstrip() for entry in re.split(r"\n(?= {4}\S)", block)}
    entries.pop("**options", None)
    for name, (_, option) in options.items():
        words = option.python or _in_python(option.help)
        given = fill(f"{name}: {words}", 120, initial_indent=" " * 4, subsequent_indent=" " * 8)
        entries[name] = entries.pop(name, given)  # at the end, as in the signature
    return before + args + "\n".join(entries.values()) + end + after if args else text


def _in_python(sentence: str) -> str:
    """Return the help ``sentence`` of a flag for a docstring.

    Example:
        >>> _in_python("Use at most N images, sampled with --seed (default: all).")
        'use at most N images, sampled with ``seed`` (default: all).'
    """
    named = re.sub(r"--([a-z-]+)", lambda flag: f"``{flag[1].replace('-', '_')}``", sentence)
    return named[:1].lower() + named[1:]
