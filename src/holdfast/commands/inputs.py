"""Arguments that several commands share: one or several encoders, balls as text, folders of runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload, runtime_checkable

from holdfast.core.balls import Ball, balls_of
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.options import Loading, Picking, takes
from holdfast.data import by_name as data
from holdfast.encoders import by_name as encoders
from holdfast.run.inputs import NamedEncoder, loading_of

P = ParamSpec("P")
T = TypeVar("T")


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
