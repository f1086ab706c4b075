"""Encoder adapters: each file turns one kind of reference (``timm:``, ``onnx:`` ...) into an Encoder.

An adapter is a module of this package, or one that another package names in the entry-point group ``holdfast.encoders``,
with a constant ``SOURCE`` and a function ``load(name, options)``. Adding the file is enough. An adapter that reads
``options.arch`` sets ``TAKES_ARCH = True``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from holdfast.core import discovery
from holdfast.core.errors import HoldfastError, check_known
from holdfast.encoders.loading.reference import Options, label, named, stamp

if TYPE_CHECKING:  # references are read without loading torch
    from holdfast.core.encoder import Encoder

__all__ = ["Adapter", "Options", "load", "references", "sources"]


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

    Args:
        reference: Reference of the encoder.

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
