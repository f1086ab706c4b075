"""``ENCODER?stored=int8:calibration=photos``: an encoder whose embeddings are read back from a store."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from holdfast.core.copies import copied
from holdfast.core.encoder import Encoder, Normalised
from holdfast.core.errors import Conflict, Described, OutOfRange, check_no_blanks
from holdfast.core.images import Images
from holdfast.data import by_name as data
from holdfast.data.codes.codes import StoredCodes, blocks, read_codes
from holdfast.data.codes.forms import Form, Kept, Products, Signs
from holdfast.encoders.by_name import named
from holdfast.encoders.embeddings import Embeddings

SETTING = "stored="
EMBEDDINGS = "embeddings:"
"""Begins a calibration that is no images."""
CALIBRATED = 256
"""Images of a calibration, the largest number."""
BATCH = 32
JUDGED = (
    "Embeddings are read back from {bytes} bytes each ({form}). Attacks search with gradients of the full embedding and are "
    "judged on the stored one, so a stronger search may find smaller radii."
)


def apart(reference: str) -> tuple[str, Form | None]:
    """Split a reference into that of the encoder and the form in which its embeddings are stored.

    Example:
        >>> apart("timm:resnet50?seed=1&stored=float16")
        ('timm:resnet50?seed=1', Float16(first=None))
        >>> apart("embeddings:codes.npy?stored=float16")
        ('embeddings:codes.npy?stored=float16', None)
    """
    base, _, query = reference.partition("?")
    parts = query.split("&")
    forms = [part.removeprefix(SETTING) for part in parts if part.startswith(SETTING)]
    if not forms or named(base)[1].startswith(EMBEDDINGS):
        return reference, None
    if len(forms) > 1:
        raise Conflict(reference, f"{len(forms)} forms", "stored once")
    rest = "&".join(part for part in parts if not part.startswith(SETTING))
    return f"{base}?{rest}" if rest else base, Form.read(forms[0])


def stored(
    encoder: Encoder, form: str | Form, calibration: Images | np.ndarray | Tensor | None = None, name: str | None = None
) -> Encoder:
    """Encoder whose embeddings are read back from the form in which they are stored.

    Args:
        encoder: Encoder, or embeddings.
        form: Form, such as ``int8:ranges=ranges.npy``, ``binary``, ``float16`` or ``float32:first=64``.
        calibration: Images, or embeddings of shape (n, d), to fit ranges to; of ``Embeddings`` their own rows by default.
        name: Name in reports; by default that of the encoder and the form.

    Returns:
        Encoder with gradients of the full embedding, and values of the stored one.

    Raises:
        HoldfastError: A setting does not fit the embeddings, or ranges are missing.

    Example:
        >>> from holdfast.encoders import builtin
        >>> signs = stored(builtin.load("digits-robust"), "binary")
        >>> signs.name, signs(torch.rand(2, 1, 8, 8)).unique()
        ('digits-robust as binary', tensor([-1.,  1.]))
    """
    check_no_blanks({"form": form, "name": name})
    form = Form.read(form) if isinstance(form, str) else form
    kept = copy(encoder)
    kept.__dict__.pop("fingerprint", None)
    kept.stored_from = encoder.stored_from or encoder.fingerprint
    kept.name = name or f"{encoder.name} as {form.words}"
    if isinstance(kept, Embeddings):
        kept.hold(_brought(kept, form, calibration))
        return kept
    if encoder.tokens > 1 and form.first is not None:
        raise Conflict(f"stored={form.name}", f"first and {encoder.tokens} tokens", "first for one vector per image")
    fitted = form.fitted(_width(encoder), lambda of: _sample(encoder, form, of, calibration))
    kept.module, kept.texts = _through(encoder, fitted, smooth=False), None
    if fitted.integers is not None:
        judged = JUDGED.format(bytes=fitted.bytes, form=form.words)
        kept.caution = f"{encoder.caution} {judged}".strip()
    if isinstance(
        fitted, Signs | Products
    ):  # steps so wide that a distance does not grow until a perturbation is large
        kept.searched = copy(encoder)
        kept.searched.__dict__.pop("fingerprint", None)
        kept.searched.module = _through(encoder, fitted, smooth=True)
    kept.pooling = f"{encoder.pooling}, stored as {form.words}"
    return kept


class _Through(torch.nn.Module):
    """A network, and the store that its embeddings go through, or what is smooth near it."""

    def __init__(self, module: torch.nn.Module, kept: Kept, smooth: bool) -> None:
        super().__init__()
        self.module, self.kept, self.smooth = module, kept, smooth

    def forward(self, x: Tensor) -> Tensor:
        codes = self.module(x)
        return self.kept.smooth(codes) if self.smooth else self.kept(codes)


def _through(encoder: Encoder, kept: Kept, smooth: bool) -> torch.nn.Module:
    """Return the module of ``encoder`` with the store after it."""
    module = copied(encoder.module)
    if isinstance(module, Normalised):  # the outermost module states the normalisation
        module.module = _Through(module.module, kept, smooth)
    else:
        module = _Through(module, kept, smooth)
    for weight in module.parameters():
        weight.requires_grad_(False)
    return module.eval()


def without_store(encoder: Encoder) -> Encoder:
    """Encoder of the full embeddings behind those that are read back from a store; itself where there is no store.

    Args:
        encoder: Encoder, perhaps made by ``stored``.
    """
    module = encoder.module
    inner = module.module if isinstance(module, Normalised) else module
    if not isinstance(inner, _Through):
        return encoder
    full = copy(encoder)
    full.__dict__.pop("fingerprint", None)
    full.module = inner.module
    if isinstance(module, Normalised):
        full.module = copied(module)
        full.module.module = inner.module
    return full


def _brought(kept: Embeddings, form: Form, calibration: Images | np.ndarray | Tensor | None) -> StoredCodes:
    """Return the rows of ``kept`` in a form."""
    rows = kept.stored.codes

    def sample(of: str | None) -> Iterable[Tensor]:
        return blocks(rows) if of is None and calibration is None else _sample(kept, form, of, calibration)

    return replace(kept.stored, codes=form.rows(rows, sample, kept.name), name=kept.name)


def _sample(
    encoder: Encoder, form: Form, of: str | None, calibration: Images | np.ndarray | Tensor | None
) -> Iterable[Tensor]:
    """Return batches of embeddings to fit ranges to."""
    if of is not None and calibration is not None:
        raise Conflict("stored", "both", "calibration in the form or as an argument")
    if of is not None and (encoder.codes_only or of.startswith(EMBEDDINGS)):
        return blocks(read_codes(of.removeprefix(EMBEDDINGS)).codes)
    if of is None and calibration is None:
        fix = f"state one, as in stored={form.name}:calibration=photos/"
        raise OutOfRange(f"stored={form.name}", Described("neither"), "with scale, ranges or calibration", fix=fix)
    if of is not None:
        calibration = data.load(of, encoder.domain, encoder.geometry, limit=CALIBRATED)
    if isinstance(calibration, Images):
        images = calibration
        starts = range(0, len(images), BATCH)
        return (_codes(encoder, images.pixels(range(s, min(s + BATCH, len(images))))) for s in starts)
    codes = torch.as_tensor(calibration)
    return [codes if codes.is_floating_point() else codes.float()]


@torch.no_grad()
def _codes(encoder: Encoder, pixels: Tensor) -> Tensor:
    return encoder(pixels)


def _width(encoder: Encoder) -> int:
    """Number of features of an embedding."""
    low, high = encoder.domain.low, encoder.domain.high
    inside = low if abs(low) < float("inf") else min(0.0, high)
    return _codes(encoder, torch.full((1, *encoder.domain.shape), inside)).shape[1]
