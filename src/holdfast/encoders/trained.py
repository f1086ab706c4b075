"""``trained:FOLDER``: an encoder made by ``holdfast train``: its weights, and a card that describes its training.

    encoder.safetensors     the weights
    card.json               the ``Card``: architecture, inputs, recipe, data, curve and the checksums of all weights
    head.safetensors        the linear classifier that a supervised training learned on the embeddings
    epochs/0005.safetensors the weights after 5 epochs, where training kept them

The card names the architecture, so only data is read. Only an encoder whose module was written in Python needs
``--arch package.module:factory`` again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError
from torch import nn

from holdfast.core.encoder import Domain, Encoder, Normalised
from holdfast.core.errors import Conflict, HoldfastError, UnknownName, explained, readable
from holdfast.core.files import write_whole
from holdfast.core.geometry import Geometry
from holdfast.core.records import ImagesInfo, Number, Record
from holdfast.core.text_tower import TextTower
from holdfast.encoders.architectures.base import LOADED, Architecture, LoadedEncoder
from holdfast.encoders.architectures.vit import PatchTokens, VisionTransformer
from holdfast.encoders.by_name import Options, named, split
from holdfast.encoders.loading.inputs import build, inside
from holdfast.encoders.loading.library_transform import LibraryTransform
from holdfast.encoders.wrappers import check_tokens, dense, seeded

SOURCE = "trained"
TAKES_ARCH = True
CARD_VERSION = 1
CARD, WEIGHTS, HEAD, EPOCHS = "card.json", "encoder.safetensors", "head.safetensors", "epochs"
CHECKPOINT, ASKED = "checkpoint.pt", "asked"
"""What a training goes on from, and what was asked of it, in there."""
DOWNLOADING = ("timm", "torchvision")
"""Sources that fetch weights unless ``?pretrained=false``."""
LOGITS = "logits"
UNNAMED = ("checkpoint", "python", "baseline")
"""Sources that no card names as architecture: they would run code that the caller did not name."""


@dataclass(frozen=True)
class Settings:
    """Settings of a trained reference."""

    epoch: int | None = None
    """Epoch whose weights are taken, where training kept them, instead of the last."""
    tokens: str | None = None
    """``patch``, of a ``small-vit``: the code is all patch tokens instead of one vector."""
    head: str | None = None
    """``logits``: return what the classifier makes of the embedding, one number for each class."""

    def __post_init__(self) -> None:
        if self.head not in (None, LOGITS):
            raise UnknownName("head", str(self.head), [LOGITS])
        if self.head and (self.tokens or self.epoch is not None):
            raise Conflict("head", f"head={self.head} with tokens or epoch", "head alone, for the last epoch")


def every_epoch(reference: str) -> list[str]:
    """References of all epochs whose weights are kept, if one has ``epoch=all``; else the reference alone.

    Raises:
        HoldfastError: There is no trained encoder.
    """
    name, rest = named(reference)
    place, _, query = rest.removeprefix(f"{SOURCE}:").partition("?")
    if not rest.startswith(f"{SOURCE}:") or "epoch=all" not in query.split("&"):
        return [reference]
    card = read_card(Path(place).expanduser())
    epochs = sorted({*card.epochs_sha256, card.epochs})
    return [f"{name or card.name}-{epoch}={rest.replace('epoch=all', f'epoch={epoch}')}" for epoch in epochs]


class Card(Record):
    """How an encoder was trained, and everything but its weights that is needed to load it."""

    schema_version: int = CARD_VERSION
    name: str
    architecture: str | None
    """In its text form; None if the module was written in Python, and ``--arch`` builds it."""
    domain: Domain
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Normalisation around the architecture's module; None where there is none, or it is inside."""
    geometry: Geometry | LibraryTransform | None
    pooling: str
    parameters: int
    recipe: dict[str, Any]
    """All settings of the training, as one writes them in TOML."""
    objective: str
    """What was optimised, in a few words."""
    seed: int
    epochs: int
    """How many were trained."""
    images: ImagesInfo
    bank: ImagesInfo | None = None
    """Other images that training used, if any."""
    curve: tuple[dict[str, Number], ...] = ()
    """What was measured in each epoch, by name."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that trained."""
    started: str
    finished: str
    weights_sha256: str = ""
    """Of ``encoder.safetensors``; ``write`` fills it in."""
    head_sha256: str = ""
    """Of ``head.safetensors``; empty if training left no classifier."""
    epochs_sha256: dict[int, str] = Field(default_factory=dict)
    """Of the weights kept after single epochs; ``write`` fills it in."""

    @classmethod
    def of(cls, encoder: Encoder, architecture: str | None, **facts: Any) -> Card:
        """Return the card of ``encoder``; ``facts`` are the fields that the encoder does not know."""
        module = encoder.module
        architecture = without_weights(architecture) if architecture is not None else None
        geometry = encoder.geometry
        if not isinstance(geometry, Geometry | LibraryTransform | None):
            raise HoldfastError(f"a card cannot keep the preprocessing of {encoder.name}, {type(geometry).__name__}")
        stated = isinstance(module, Normalised) and not (architecture or "").startswith(f"{LOADED}:")
        return cls(
            name=encoder.name,
            architecture=architecture,
            domain=encoder.domain,
            mean=_numbers(module.mean) if stated else None,
            std=_numbers(module.std) if stated else None,
            geometry=geometry,
            pooling=encoder.pooling,
            parameters=encoder.parameters,
            **facts,
        )


def _numbers(values: Any) -> tuple[float, ...]:
    """Return single-precision ``values`` as one would write them; the file of weights has them exactly."""
    return tuple(float(f"{value:.7g}") for value in values.flatten().tolist())


def write(folder: Path, encoder: Encoder, card: Card, classifier: nn.Linear | None = None) -> Card:
    """Write weights and card into ``folder``, the card last, and return it with the checksums of all weights.

    ``classifier`` maps embeddings to one score per class.

    Raises:
        HoldfastError: the folder cannot be written.
    """
    weights = _write_weights(folder / WEIGHTS, encoder.module)
    files = {epoch: epoch_file(folder, epoch) for epoch in range(card.epochs + 1)}
    kept = {epoch: _checksum(file.read_bytes()) for epoch, file in files.items() if file.is_file()}
    head = "" if classifier is None else _write_weights(folder / HEAD, classifier)
    card = card.model_copy(update={"weights_sha256": weights, "head_sha256": head, "epochs_sha256": kept})
    _write(folder / CARD, card.model_dump_json(indent=1).encode())
    return card


def write_epoch(folder: Path, epoch: int, module: nn.Module) -> None:
    """Keep the weights of an encoder's ``module`` after ``epoch`` epochs, for ``trained:FOLDER?epoch=N``."""
    _write_weights(epoch_file(folder, epoch), module)


def epoch_file(folder: Path, epoch: int) -> Path:
    """Return where the weights after ``epoch`` epochs are kept."""
    return folder / EPOCHS / f"{epoch:04d}.safetensors"


def _write_weights(path: Path, module: nn.Module) -> str:
    from safetensors.torch import save

    # Cloned because tensors that share memory are refused.
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}
    content = save(weights)
    _write(path, content)
    return _checksum(content)


def _write(path: Path, content: bytes) -> None:
    with explained(f"cannot write {path}", "free some space or name another folder", OSError):
        write_whole(path, content)


def _checksum(content: bytes) -> str:
    return sha256(content).hexdigest()


def architecture_of(encoder: Encoder) -> str | None:
    """Return the text of the architecture that builds the module of ``encoder``; None if only Python code does.

    Example:
        >>> from holdfast.encoders.by_name import load
        >>> architecture_of(load("builtin:digits-robust"))
        'encoder:builtin:digits-robust'
    """
    reference = encoder.source.partition(" --")[0]  # size and trust are said again by who loads it
    source, colon, _ = reference.partition(":")
    return without_weights(f"{LOADED}:{reference}") if colon and source not in UNNAMED else None


def without_weights(architecture: str) -> str | None:
    """Return what builds the same module as ``architecture``, if possible without reading weights that are replaced.

    Example:
        >>> without_weights("encoder:timm:resnet18"), without_weights("digits")
        ('encoder:timm:resnet18?pretrained=false', 'digits')
    """
    if not architecture.startswith(f"{LOADED}:"):
        return architecture
    reference = named(architecture.partition(":")[2])[1]
    source, _, name = reference.partition(":")
    if source == SOURCE:
        folder, settings = split(name, Settings)
        changed = settings.tokens or settings.head  # another module than the card's
        return architecture if changed else read_card(Path(folder).expanduser()).architecture
    if source in DOWNLOADING and "pretrained=false" not in name:
        reference += ("&" if "?" in name else "?") + "pretrained=false"
    return f"{LOADED}:{reference}"


def written_in_python(name: str) -> bool:
    """Return whether the trained encoder ``name`` needs ``--arch``; not where it has no card, which loading it says."""
    try:
        return read_card(Path(split(name, Settings)[0]).expanduser()).architecture is None
    except HoldfastError:
        return False


def load(name: str, options: Options) -> Encoder:
    """Return the trained encoder in the folder ``name``, as in ``runs/robust`` or ``runs/robust?epoch=5``."""
    from safetensors.torch import load as tensors

    name, settings = split(name, Settings)
    folder = Path(name).expanduser()
    card = read_card(folder)
    if options.size and card.domain.shape[1:] != (options.size, options.size):
        raise HoldfastError(f"{name!r} takes inputs {card.domain.shape}, got size={options.size}; leave it out")
    path, expected = _weights(folder, card, settings.epoch)
    content = _sound(path, expected)
    module, texts = seeded(partial(_module, folder, card, options), 0)
    stated = {key: getattr(card, key) for key in ("mean", "std", "geometry", "pooling")}
    encoder = Encoder(module.eval(), card.name, card.domain, source=f"{SOURCE}:{name}", texts=texts, **stated)
    try:
        encoder.module.load_state_dict(tensors(content))
    except RuntimeError as error:
        what = f"--arch {options.arch}" if options.arch else f"its architecture {card.architecture}"
        reason = " ".join(str(error).split())
        raise HoldfastError(f"'{path}' does not fit {what}: {reason}; name the module that was trained") from error
    if settings.head is not None:
        return _with_classifier(encoder, folder, card)
    return encoder if settings.tokens is None else _of_patches(encoder, settings.tokens)


def _with_classifier(encoder: Encoder, folder: Path, card: Card) -> Encoder:
    """Return ``encoder`` followed by the classifier that was trained on its embeddings."""
    from safetensors.torch import load as tensors

    if not card.head_sha256:
        raise HoldfastError(
            f"'{folder}' keeps no classifier: a finished training with the objective supervised, without ema and with "
            "labels from 0 without gaps, leaves one. Leave out head=logits, or fit a probe"
        )
    weights = tensors(_sound(folder / HEAD, card.head_sha256))
    classes, features = weights["weight"].shape
    linear = nn.Linear(features, classes)
    linear.load_state_dict(weights)
    return _ending_in(nn.Sequential(inside(encoder.module), linear), encoder, "inside the module, then its classifier")


def _ending_in(network: nn.Module, encoder: Encoder, pooling: str) -> Encoder:
    """Return ``encoder`` with another ``network`` behind its normalisation."""
    if isinstance(encoder.module, Normalised):
        encoder.module.module = network
        network = encoder.module
    return Encoder(
        network, encoder.name, encoder.domain, source=encoder.source, geometry=encoder.geometry, pooling=pooling
    )


def _of_patches(encoder: Encoder, tokens: str) -> Encoder:
    """Return the vision transformer that ``encoder`` is, with all patch tokens as its codes."""
    check_tokens(tokens, None)
    network = inside(encoder.module)
    if not isinstance(network, VisionTransformer):
        raise HoldfastError(f"{encoder.name} is no small-vit, whose patch tokens are known; leave out tokens={tokens}")
    return _ending_in(dense(PatchTokens(network), encoder.domain, encoder.name), encoder, "none, all patch tokens")


def read_card(folder: Path) -> Card:
    """Return the card in ``folder``.

    Raises:
        HoldfastError: there is none, as before the end of a training, it is damaged, or of another version of holdfast.
    """
    path = folder / CARD
    if not path.exists() and (folder / CHECKPOINT).exists():
        raise HoldfastError(_unfinished(folder))
    content = _content(path)
    with explained(f"'{path}' is no whole card", "copy the folder again", ValueError, KeyError, TypeError):
        version = json.loads(content)["schema_version"]
    if version != CARD_VERSION:
        raise HoldfastError(
            f"'{path}' has version {version!r}, and this holdfast reads version {CARD_VERSION}; "
            "load it with the holdfast that trained it"
        )
    try:
        return Card.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise HoldfastError(f"'{path}' is no card: {where}: {first['msg'].lower()}; copy the folder again") from error


def _unfinished(folder: Path) -> str:
    """Return how far the training in ``folder`` came that has a checkpoint and no card yet, and what to do."""
    epochs = ""
    with suppress(Exception):  # of a damaged one the command that made it says what is wrong
        state = torch.load(folder / CHECKPOINT, map_location="cpu", weights_only=True, mmap=True)
        epochs = f" ({state['epoch']} of {json.loads(state[ASKED])['epochs']} epochs)"
    return (
        f"the training in '{folder}' is not finished{epochs}, so there is no encoder yet; the holdfast harden or holdfast "
        "train that began it goes on from there"
    )


def _sound(path: Path, expected: str) -> bytes:
    """Return the content of ``path``, whose checksum its card states."""
    content = _content(path)
    if _checksum(content) != expected:
        raise HoldfastError(f"'{path}' does not match its card (sha256); it may be truncated: copy the folder again")
    return content


def _content(path: Path) -> bytes:
    with readable(str(path), "name a whole folder that holdfast train wrote", OSError):
        return path.read_bytes()


def _weights(folder: Path, card: Card, epoch: int | None) -> tuple[Path, str]:
    """Return the file of the weights after ``epoch`` epochs (None: the last) and its checksum."""
    if epoch in (None, card.epochs):
        return folder / WEIGHTS, card.weights_sha256
    if epoch not in card.epochs_sha256:
        kept = ", ".join(map(str, sorted({*card.epochs_sha256, card.epochs})))
        raise HoldfastError(f"'{folder}' keeps no weights after {epoch} epochs; there are those after {kept}")
    return epoch_file(folder, epoch), card.epochs_sha256[epoch]


def _module(folder: Path, card: Card, options: Options) -> tuple[nn.Module, TextTower | None]:
    """Return what the weights belong to, without the normalisation that the card states.

    And the text tower of the encoder that training began with, beside whose texts its codes are still compared.
    """
    if options.arch is not None:
        built = build(options.arch, f"--arch {options.arch}")
        return inside(built.module) if isinstance(built, Encoder) else built, None
    if card.architecture is None:
        raise HoldfastError(
            f"'{folder}' was trained from a module made in Python; say which: --arch package.module:factory"
        )
    try:
        architecture = Architecture.read(card.architecture)
        if isinstance(architecture, LoadedEncoder):
            start = architecture.load(card.domain, options)
            return start.module, start.texts
        return architecture.build(card.domain), None
    except HoldfastError as error:
        raise HoldfastError(f"'{folder}' cannot be built: {error}") from error
