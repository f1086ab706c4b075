"""Other threats for held-out encoders, which no metric without labels uses.

The primary reference is an attack by the library itself, in the kind of ball of most measures. These are other balls,
a patch, images attacked elsewhere, attacks without gradients, several attacks together, an attack of another program
(foolbox, Rauber et al. 2020, https://doi.org/10.21105/joss.02607), corruptions that were not looked at, and edited copies
that are searched for. All are shares of images, larger is more robust, and were fixed before any result, but for fine-tuned
encoders, which were added when the others had been seen.
"""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import holdfast as hf
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import label
from holdfast.core.balls import Ball
from holdfast.core.noise import Noise
from holdfast.core.records import Series
from holdfast.probes.linear import logistic_regression
from holdfast.transforms.base import Transform
from holdfast.transforms.severity import FIFTEEN
from studies.agreement.kept_apart import TAUGHT
from studies.agreement.measures import ATTACK, KINDS, Values, one
from studies.agreement.members import Member
from studies.agreement.references import PROBES, SEED, Reference
from studies.agreement.zoo import Zoo

IMAGES = 50
BALLS = {
    "mnist": {"l2": (0.7, 1.4), "l1": (7.0, 14.0), "linf": (0.05, 0.1, 0.2)},
    "fashion": {"l2": (0.35, 0.7), "l1": (3.5, 7.0), "linf": (0.02, 0.05, 0.1)},
}
TOGETHER = ("adaptive:restarts=2,steps=20", "pgd:steps=20", "square:queries=100")
GRADIENTS = ("l2 attacks", "l1 attacks", "attacks together", "fine-tuned", "another program", "patch", "transfer")
"""Threats whose attacks climb gradients, as those of the primary reference do."""
TUNED = ("fine-tune:optimiser=adamw",)
OTHER_KINDS = tuple(kind for kind in FIFTEEN if kind not in KINDS)
EDITS = ("gamma:0.5", "resize:0.5", "low-pass:6", "random-affine")
SIDE, PLACES, STEPS = 7, 4, 15
"""Of a patch: its side in pixels, the places tried, and steps at each."""
FOOLBOX = {"steps": 20, "rel_stepsize": 0.1}
"""Its own default of 1/30 would not cross the ball in 20 steps."""
THREATS = (
    Reference("l2 attacks", "accuracy of both probes, mean over two l2 balls"),
    Reference("l1 attacks", "the same in two l1 balls"),
    Reference("query-only attack", f"accuracy of both probes under `{TOGETHER[-1]}`, without gradients"),
    Reference("attacks together", "accuracy of the linear probe under the worst of three attacks of the library"),
    Reference("fine-tuned", "the same, after fine-tuning on 2,000 labels, without attacks on the embedding"),
    Reference("another program", "accuracy of the linear probe under PGD of foolbox, mean over three linf balls"),
    Reference(
        "patch", f"accuracy of the linear probe when {SIDE} × {SIDE} pixels may change freely, at {PLACES} places"
    ),
    Reference(
        "transfer", "accuracy of the linear probe on images attacked on another network, mean over three linf balls"
    ),
    Reference("other corruptions", "kNN accuracy under ten corruptions that no metric uses"),
    Reference("edited copies", "fraction of edited copies whose nearest image of a reference set is their original"),
)


def settings(dataset: str) -> dict[str, dict[str, Any]]:
    """Return the settings of each evaluation for a data set."""
    balls, linf = BALLS[dataset], BALLS[dataset]["linf"]
    norms = [f"{norm}:{eps:g}" for norm in ("l2", "l1") for eps in balls[norm]]
    shared = {"probes": PROBES, "samples": IMAGES}
    return {
        "norms": {**shared, "balls": norms, "attacks": [ATTACK]},
        "together": {**shared, "balls": [f"linf:{linf[1]:g}"], "attacks": TOGETHER},
        "tuned": {**shared, "probes": TUNED, "balls": [f"linf:{linf[1]:g}"], "attacks": TOGETHER},
        "corruptions": {"kinds": OTHER_KINDS, "severities": [3], "probes": PROBES[:1], "samples": IMAGES},
        "others": {"linf": linf, "edits": EDITS, "patch": (SIDE, PLACES, STEPS), "foolbox": FOOLBOX},
    }  # fmt: skip


def measured(zoo: Zoo, member: Member, encoder: hf.Encoder, out: Path) -> tuple[dict[str, float], dict[str, Values]]:
    """Return what is left of an encoder's use under each of ``THREATS``, and what is known of it image by image."""
    dataset = member.dataset
    images, bank = zoo.labelled(dataset, IMAGES), zoo.bank(dataset)
    measured_of = partial(evaluated, zoo, member, encoder, out)
    norms, together = (measured_of("robust-accuracy", key) for key in ("norms", "together"))
    wrong = one(measured_of("corruption-error", "corruptions"), "corrupted_wrong", corruption="all", probe=PROBES[0])
    middle = settings(dataset)["together"]["balls"][0]
    series = {
        f"{name} attacks": np.mean(
            [kept(norms, f"{name}:{eps:g}", [ATTACK], PROBES) for eps in BALLS[dataset][name]], 0
        )
        for name in ("l2", "l1")
    }
    series |= {
        "query-only attack": kept(together, middle, TOGETHER[-1:], PROBES, ("the probe",)),
        "attacks together": kept(together, middle, TOGETHER, PROBES[1:]),
        "fine-tuned": fine_tuned(zoo, member, encoder, out),
        "other corruptions": 1 - wrong,
        **_by_hand(zoo, dataset, encoder, images, bank),
    }
    return {name: float(np.nanmean(values)) for name, values in series.items()}, series


def fine_tuned(zoo: Zoo, member: Member, encoder: hf.Encoder, out: Path) -> Values:
    """Return which images stay right under all attacks on an encoder that was fine-tuned; unknown where nothing can be."""
    if not any(True for _ in encoder.module.parameters()):
        return np.full(IMAGES, np.nan)
    found = evaluated(zoo, member, encoder, out, "robust-accuracy", "tuned")
    return kept(found, settings(member.dataset)["tuned"]["balls"][0], TOGETHER, TUNED, ("the probe",))


def evaluated(zoo: Zoo, member: Member, encoder: hf.Encoder, out: Path, name: str, key: str) -> tuple[Series, ...]:
    """Return what an evaluation finds with the settings called ``key``, image by image."""
    run = hf.evaluate(
        encoder,
        zoo.labelled(member.dataset, IMAGES),
        bank=zoo.bank(member.dataset),
        only=[name],
        settings={name: settings(member.dataset)[key]},
        suite="standard",
        seed=SEED,
        out=out,
        progress=False,
    )
    return run[name].findings.series


def kept(
    series: tuple[Series, ...], ball: str, attacks: Any, probes: Any, aims: Any = ("the probe", "the code")
) -> Values:
    """Return for each image the share of probes that stay right under the worst of the attacks."""
    named, ways = str(Ball.read(ball)), [f"{label(Attack.read(attack))} at {aim}" for attack in attacks for aim in aims]
    worst = [
        np.min([one(series, "robust", probe=probe, ball=named, attack=way) for way in ways], 0) for probe in probes
    ]
    return np.mean(worst, axis=0)


def _by_hand(zoo: Zoo, dataset: str, encoder: hf.Encoder, images: hf.Images, bank: hf.Images) -> dict[str, Values]:
    """Return what no evaluation measures: another program's attack, a patch, transferred images and edited copies."""
    pixels, labels = images.pixels(range(len(images))), images.labels
    assert labels is not None
    head = classifier(encoder, bank)
    radii = BALLS[dataset]["linf"]
    return {
        "another program": np.mean([foolbox_keeps(head, pixels, labels, eps) for eps in radii], axis=0),
        "patch": patch_keeps(head, pixels, labels),
        "transfer": np.mean([_right(head, moved_outside(zoo, dataset, eps), labels) for eps in radii], axis=0),
        "edited copies": copies_found(encoder, pixels, bank.pixels(range(len(bank)))),
    }


def classifier(encoder: hf.Encoder, bank: hf.Images) -> nn.Sequential:
    """Return the encoder with a linear head learned from the bank, whose outputs are the labels from 0 on."""
    assert bank.labels is not None
    with torch.no_grad():
        codes = encoder(bank.pixels(range(len(bank))))
    learned = logistic_regression(codes, bank.labels, tolerance=1e-3)
    assert learned["classes"].tolist() == list(range(len(learned["classes"])))
    head = nn.Linear(codes.shape[1], len(learned["classes"]))
    with torch.no_grad():
        head.weight.copy_(learned["weight"])
        head.bias.copy_(learned["bias"])
    return nn.Sequential(encoder.module, nn.Flatten(), head).eval()


@torch.no_grad()
def _right(head: nn.Module, pixels: Tensor, labels: Int[Tensor, "n"]) -> Values:
    return (head(pixels).argmax(1) == labels).double().numpy()


def foolbox_keeps(head: nn.Module, pixels: Tensor, labels: Int[Tensor, "n"], eps: float) -> Values:
    """Return which images stay right under projected gradient descent of foolbox, from a random start."""
    foolbox = import_module("foolbox")  # which the project does not install
    torch.manual_seed(SEED)
    model = foolbox.PyTorchModel(head, bounds=(0, 1))
    _, _, fell = foolbox.attacks.LinfPGD(**FOOLBOX)(model, pixels, labels, epsilons=eps)
    return _right(head, pixels, labels) * (~fell).double().numpy()


def patch_keeps(head: nn.Module, pixels: Tensor, labels: Int[Tensor, "n"]) -> Values:
    """Return which images stay right when a square may be painted: by signs of the gradient, at the same places of all."""
    random = np.random.default_rng(SEED)
    with torch.no_grad():
        right = head(pixels).argmax(1) == labels
    for _ in range(PLACES):
        y, x = (int(random.integers(0, side - SIDE + 1)) for side in pixels.shape[-2:])
        mask = torch.zeros_like(pixels[:1])
        mask[..., y : y + SIDE, x : x + SIDE] = 1
        moved = torch.where(mask > 0, 0.5, pixels)
        for _ in range(STEPS):
            moved.requires_grad_()
            (gradient,) = torch.autograd.grad(cross_entropy(head(moved), labels, reduction="sum"), moved)
            moved = (moved.detach() + 0.2 * mask * gradient.sign()).clamp(0, 1)
            with torch.no_grad():
                right &= head(moved).argmax(1) == labels
    return right.double().numpy()


@cache
def outside(zoo: Zoo, dataset: str) -> hf.Encoder:
    """Return a network that belongs to no zoo, with a linear head: trained on images that no member saw."""
    place = zoo.folder / dataset / "outside"
    if (place / "encoder.safetensors").exists():
        return hf.load_encoder(f"trained:{place}")
    recipe = {"objective": "supervised", "architecture": "small-resnet:width=8", "augmentation": "none", "batch": 256}
    recipe |= {"epochs": 4, "seed": 99, "optimiser": "adam:rate=0.003", "schedule": "constant"}
    taught = zoo.taught(dataset, slice(2 * TAUGHT, 3 * TAUGHT))
    return hf.train(recipe, taught, out=place, progress=False)


@cache
def moved_outside(zoo: Zoo, dataset: str, eps: float) -> Tensor:
    """Return the labelled images attacked on the network outside, where its linear head gets them wrong."""
    images, encoder = zoo.labelled(dataset, IMAGES), outside(zoo, dataset)
    labels, head = images.labels, classifier(encoder, zoo.bank(dataset))[2]
    assert labels is not None
    attack = Attack.read("adaptive:restarts=1,steps=20")
    return attack(
        encoder,
        images.pixels(range(len(images))),
        lambda codes: cross_entropy(head(codes), labels, reduction="none"),
        Ball.read(f"linf:{eps:g}"),
        Noise.of(SEED, images.ids),
    )


def copies_found(encoder: hf.Encoder, pixels: Tensor, bank: Tensor) -> Float[np.ndarray, "n"]:
    """Return for each image the share of its edited copies that are nearest, by cosine, to it among all and the bank."""
    with torch.no_grad():
        units = normalize(torch.cat([encoder(pixels), encoder(bank)]).double())
        noise = Noise.of(SEED, [str(place) for place in range(len(pixels))])
        edited = [normalize(encoder(Transform.read(edit)(pixels, noise.fork(edit))).double()) for edit in EDITS]
    found = [((codes @ units.T).argmax(1) == torch.arange(len(pixels))).double() for codes in edited]
    return torch.stack(found).mean(0).numpy()
