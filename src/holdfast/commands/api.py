"""What the command line does, as functions of encoders and images that are named or at hand."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast import data
from holdfast import encoders as adapters
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import Preset, read_attack
from holdfast.bounds import Method
from holdfast.commands import certify_bounds as certificates
from holdfast.commands.attack_images import Adversarial, AdversarialImages, adversarial
from holdfast.commands.certify_bounds import CertificateRecord, Certificates
from holdfast.commands.inputs import (
    NamedEncoder,
    NamedImages,
    at_hand,
    checked,
    for_each_encoder,
    read_ball,
    shown,
)
from holdfast.commands.output_folder import claim, require_free
from holdfast.core.balls import Ball
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, HoldfastWarning, refuse_blanks
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.core.settings import read
from holdfast.encoders import Options
from holdfast.execution.catalog import objectives
from holdfast.execution.loading import load_encoder as loaded_encoder
from holdfast.execution.loading import select
from holdfast.execution.table import collect, unfit
from holdfast.objectives.base import Objective
from holdfast.protocol.population import Population
from holdfast.store.store import Store, key_of


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
    refuse_blanks(locals())
    return adapters.load(reference, Options(arch, size, trust_remote_code))


def load_images(reference: str | Path, encoder: Encoder, *, limit: int | None = None, seed: int = 0) -> Images:
    """Return the images in a folder, a file or a data set as inputs of ``encoder``; ``seed`` chooses ``limit`` of them."""
    refuse_blanks(locals())
    if not isinstance(reference, str | Path):
        raise HoldfastError(f"images are named by a folder, a file or a reference, got {type(reference).__name__}")
    if not isinstance(encoder, Encoder):
        raise HoldfastError(f"images are loaded for an Encoder, got {type(encoder).__name__}; load_encoder makes one")
    return data.load(str(reference), encoder.domain, encoder.geometry, limit=limit, seed=seed)


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
    refuse_blanks(locals())
    wanted = Certificates.of(read_ball(ball), limit, negatives, method, attack, neurons)
    population, started = (
        _population(encoder, images, RunSettings(seed, device, precision, batch_size)),
        datetime.now(UTC),
    )
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
    refuse_blanks(locals())
    sought = read(objective, objectives(), "objective") if isinstance(objective, str) else objective
    search = read_attack(attack) if isinstance(attack, str) else attack
    for value, kind, form in ((sought, Objective, "away"), (search, Attack, "adaptive")):
        if not isinstance(value, kind):
            raise HoldfastError(f"expected an {kind.__name__} or its text, as in {form!r}, got {value!r}")
    population = _population(encoder, images, RunSettings(seed, device, precision, batch_size), limit)
    wanted = AdversarialImages.of(Preset(sought, search, read_ball(ball), "holdfast.attack"), population)
    with TemporaryDirectory(prefix="holdfast-") as folder, shown(progress) as show:
        population, rows, observed = collect(wanted, population, Store(Path(folder)), progress=show)
    return adversarial(population, wanted, rows, observed)


def _population(encoder: NamedEncoder, images: NamedImages, run: RunSettings, limit: int | None = None) -> Population:
    """Return the images and the encoder, which is fit to be measured on them."""
    loaded = loaded_encoder(checked(encoder))
    chosen = select(at_hand(images), loaded.domain, loaded.geometry, limit=limit, seed=run.seed)
    population = Population(loaded, chosen, run)
    if problem := unfit(population):
        raise HoldfastError(f"{loaded.name} cannot be measured: {problem}")
    return population
