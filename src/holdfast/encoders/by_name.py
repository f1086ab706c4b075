"""Encoder adapters: each file turns one kind of reference (``timm:``, ``onnx:`` ...) into an Encoder.

An adapter is a module of this package, or one that another package names in the entry-point group ``holdfast.encoders``,
with a constant ``SOURCE`` and a function ``load(name, options)``. Adding the file is enough. An adapter that reads
``options.arch`` sets ``TAKES_ARCH = True``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, get_args, get_origin, runtime_checkable

from holdfast.core import discovery
from holdfast.core.errors import HoldfastError, check_known, check_whole, explained
from holdfast.core.files import EMBEDDING_FILES
from holdfast.core.settings import convert, fields_of, types_of

if TYPE_CHECKING:  # references are read without loading torch
    from holdfast.core.encoder import Encoder

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What the caller says about every encoder to load; adapters read what concerns them."""

    arch: str | None = None
    """Function that builds the module of a checkpoint, as ``package.module:factory``."""
    size: int | None = None
    """Height and width of the inputs in pixels, instead of the source's own."""
    trust_remote_code: bool = False
    """True if a model repository may run its own Python code on this machine."""

    def __post_init__(self) -> None:
        if self.arch is not None and not isinstance(self.arch, str):
            raise HoldfastError(f"arch is text of the form package.module:factory, got {self.arch!r}")
        if self.size is not None:
            check_whole(self.size, "size", 1)


def named(reference: str) -> tuple[str, str]:
    """Split a reference into its short name, if it has one, and the rest; a file of numbers holds embeddings.

    Example:
        >>> named("mine=timm:resnet50"), named("timm:resnet50?seed=1")
        (('mine', 'timm:resnet50'), ('', 'timm:resnet50?seed=1'))
        >>> named("?stored=binary"), named("codes.npy?stored=binary")
        (('', '?stored=binary'), ('', 'embeddings:codes.npy?stored=binary'))
        >>> named("data/day=1/codes.npy")
        ('', 'embeddings:data/day=1/codes.npy')
    """
    head, colon, rest = reference.partition(":")
    name, equals, source = head.partition("=")
    in_folder = "/" in name and ":" not in reference.partition("?")[0]
    if not equals or "?" in name or in_folder:  # the = is in a setting, or in the path of a file
        return "", _with_source(reference)
    if not name.strip() or "," in name:
        raise HoldfastError(f"a short name stands before =, without commas, as in a=timm:resnet50; got {reference!r}")
    return name.strip(), _with_source(source + colon + rest)


def _with_source(reference: str) -> str:
    if ":" in (file := reference.partition("?")[0]):
        return reference
    return f"embeddings:{reference}" if file.lower().endswith(EMBEDDING_FILES) else reference


def stamp(reference: str, options: Options) -> str:
    """Reference and options of an encoder as one types them, for the record.

    Example:
        >>> stamp("hf:a/b", Options(size=64, trust_remote_code=True))
        'hf:a/b --size 64 --trust-remote-code'
    """
    flags = [f"--arch {options.arch}"] if options.arch else []
    flags += [f"--size {options.size}"] if options.size else []
    flags += ["--trust-remote-code"] if options.trust_remote_code else []
    return " ".join([reference, *flags])


def label(name: str) -> str:
    """Name of an encoder in reports: without folders, modules and settings.

    Example:
        >>> label("models/encoder.onnx?pool=cls"), label("package.module:factory")
        ('encoder.onnx', 'factory')
    """
    return name.partition("?")[0].rstrip("/").rpartition("/")[2].rpartition(":")[2]


def split(name: str, kind: type[T]) -> tuple[str, T]:
    """Split a reference into its name and its settings.

    A setting may be given several times if its field is a tuple.

    Args:
        name: Reference, such as ``encoder?size=32``; a setting may occur several times if its field is a tuple.
        kind: Dataclass of the settings, whose fields have defaults.

    Raises:
        HoldfastError: A setting is unknown, has no value or is given twice.

    Example:
        >>> split("encoder?size=32", Options)
        ('encoder', Options(arch=None, size=32, trust_remote_code=False))
        >>> split("encoder?siz=32", Options)
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ... Did you mean 'size'? Known: ...
    """
    base, _, query = name.partition("?")
    known = fields_of(kind)
    values: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        key, equals, value = part.partition("=")
        if not equals:
            raise HoldfastError(f"settings have the form ?setting=value&setting=value, got {part!r} in {name!r}")
        check_known(f"settings of {base!r}", key, known)
        several = get_origin(types_of(kind)[key]) is tuple
        if key in values and not several:
            raise HoldfastError(f"{base!r}: setting {key!r} is given twice; keep one")
        where = f"{base!r}, setting {key!r}"
        if several:
            values[key] = (*values.get(key, ()), convert(value, get_args(types_of(kind)[key])[0], where))
        else:
            values[key] = convert(value, types_of(kind)[key], where)
    return base, kind(**values)


def require(package: str, extra: str, distribution: str | None = None) -> Any:
    """Return the module ``package``, which the optional dependencies ``extra`` bring.

    Args:
        package: the module's name.
        extra: the optional dependencies of holdfast that bring it.
        distribution: what to install, where it is not called like the module.
    """
    fix = f"install it with: pip install {distribution or package} (in a clone of holdfast: pip install '.[{extra}]')"
    together = (
        "torchvision was built for another torch than yours; install the two together: pip install --force-reinstall torch "
        "torchvision (without a GPU, add --index-url https://download.pytorch.org/whl/cpu)"
    )
    with (
        explained(f"{package} cannot be imported", fix, ImportError),
        explained(f"{package} cannot be imported", together, RuntimeError),
    ):
        return import_module(package)


@runtime_checkable
class Adapter(Protocol):
    """What a module of this package offers to be found."""

    SOURCE: str
    """Source that the module adapts."""

    def load(self, name: str, options: Options) -> Encoder:
        """Encoder by its name.

        Args:
            name: Reference without its source and settings.
            options: Options of the caller.
        """
        ...


def sources() -> dict[str, Adapter]:
    """Return every adapter by the source it serves.

    Example:
        >>> "onnx" in sources()
        True
    """
    import holdfast.encoders as home

    return {source: cast(Adapter, module) for source, module in discovery.sources(home).items()}


def load(reference: str, options: Options | None = None) -> Encoder:
    """Load an encoder by reference: ``source:name`` or ``source:name?setting=value``.

    ``mine=source:name`` gives it a short name. ``?stored=int8:calibration=photos`` reads its embeddings back from a store.

    Raises:
        HoldfastError: The source is unknown, or the encoder cannot be loaded.

    Example:
        >>> import torch
        >>> load("baseline:pixels?shape=1x8x8")(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 64])
        >>> load("tim:resnet50")
        Traceback (most recent call last):
        holdfast.core.errors.UnknownName: ... Did you mean 'timm'? Known: ...
    """
    from holdfast.encoders.stored import apart, stored

    options = options or Options()
    if not isinstance(reference, str):
        raise HoldfastError(
            f"an encoder reference is text such as 'timm:resnet50', got {reference!r}; an nn.Module becomes an encoder as "
            "Encoder(module, name, Domain((3, 224, 224)))"
        )
    short, reference = named(reference)
    plain, form = apart(reference)
    source, colon, name = plain.partition(":")
    if not (colon and name):
        raise HoldfastError(
            f"encoder references have the form source:name, as in timm:resnet50; got {reference!r}; "
            f"known sources: {', '.join(sorted(sources()))}"
        )
    check_known(f"encoder source of {reference!r}", source, sources())
    if options.arch and not getattr(sources()[source], "TAKES_ARCH", False):
        raise HoldfastError(
            f"--arch {options.arch} changes nothing: {source} brings the module of {reference!r}; leave it out"
        )
    encoder = sources()[source].load(name, options)
    encoder.name = short or (encoder.name if encoder.codes_only else label(name))
    if form is not None:
        encoder = stored(encoder, form, name=short or None)
    encoder.source = stamp(reference, options)
    return encoder


def references(encoders: Sequence[str], arch: Sequence[str], options: Options) -> list[tuple[str, Options]]:
    """Return each of ``encoders`` with its options; several ``arch`` belong to checkpoints in their order.

    Trained encoders whose module was written in Python count as checkpoints.

    Raises:
        HoldfastError: There are several ``arch`` and not one for each checkpoint, or one and no checkpoint.
    """
    takes_arch = [bool(arch) and _takes_arch(*named(reference)[1].partition(":")[::2]) for reference in encoders]
    if arch and not any(takes_arch):
        raise HoldfastError(f"--arch {arch[0]} changes nothing: no encoder is a checkpoint; leave it out")
    if len(arch) > 1 and len(arch) != sum(takes_arch):
        raise HoldfastError(
            f"{len(arch)} --arch for {sum(takes_arch)} checkpoints; give one for all of them, or one for each in their "
            "order"
        )
    architectures = iter(arch if len(arch) > 1 else [*arch] * sum(takes_arch))
    return [
        (reference, replace(options, arch=next(architectures, None) if mine else None))
        for reference, mine in zip(encoders, takes_arch, strict=True)
    ]


def _takes_arch(source: str, name: str) -> bool:
    """Return whether ``--arch`` builds the encoder, by its source; also for trained ones with a module in Python."""
    from holdfast.encoders.trained import written_in_python

    takes_arch = getattr(sources().get(source), "TAKES_ARCH", False)
    return takes_arch and (source != "trained" or written_in_python(name))
