"""What adapters share: options, settings inside a reference, and errors about what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar, get_args, get_origin

from holdfast.core.errors import HoldfastError, check_known, check_whole, explained
from holdfast.core.errors import existing as existing
from holdfast.core.errors import first_line as first_line
from holdfast.core.settings import convert, fields_of, types_of

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
    """
    head, colon, rest = reference.partition(":")
    name, equals, source = head.partition("=")
    if not equals or "?" in name:  # the setting of a reference without a source
        return "", _with_source(reference)
    if not name.strip() or "," in name:
        raise HoldfastError(
            f"a short name stands before =, without commas, as in mine=timm:resnet50; got {reference!r}"
        )
    return name.strip(), _with_source(source + colon + rest)


def _with_source(reference: str) -> str:
    if ":" in (file := reference.partition("?")[0]):
        return reference
    from holdfast.data.codes.files import SUFFIXES  # loaded here, because it needs torch

    return f"embeddings:{reference}" if file.lower().endswith(SUFFIXES) else reference


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
