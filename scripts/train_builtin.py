"""Train the built-in encoders and write their weights and cards: ``python scripts/train_builtin.py``.

All start from the same weights, see the same augmented digits in the same order and differ by their loss alone. With unit
codes ``u`` of two views of ``n`` images, NT-Xent (Chen et al. 2020, https://arxiv.org/abs/2002.05709) is the mean over all
``2n`` anchors ``i`` with positive ``p(i)`` of ``-log( exp(u_i.u_p(i) / T) / sum_{k != i} exp(u_i.u_k / T) )``. The robust
one adds a third view, moved inside an l-infinity ball to raise that loss against the second (RoCL, Kim et al. 2020,
https://arxiv.org/abs/2006.07589). Everything is seeded and runs in one thread: on one machine the weights come out
the same to the last bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import pi
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors.torch import save
from score_builtin import accuracies, digits, table
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.encoder import Codes, Encoder
from holdfast.core.noise import Noise
from holdfast.encoders.architectures.digits import Digits
from holdfast.encoders.builtin import DOMAIN, NAMES

WEIGHTS = Path(__file__).parents[1] / "src/holdfast/encoders/weights"
SEED, EPOCHS, BATCH, RATE = 0, 300, 240, 5e-3
TEMPERATURE, EPS, STEPS = 0.2, 0.15, 7
Images = Float[Tensor, "b 1 8 8"]
Loss = Callable[[nn.Module, Images, Int[Tensor, "b"], Noise], Float[Tensor, ""]]


@dataclass(frozen=True)
class Recipe:
    """What one encoder is trained with; the head is dropped afterwards."""

    summary: str
    loss: Loss | None = None
    head: Callable[[], nn.Module] = nn.Identity
    eps: float | None = None


def augment(pixels: Images, noise: Noise) -> Images:
    """Return a random view of each digit: turned, scaled, shifted by up to half a pixel, contrast changed, noisy."""
    draw = 2 * noise.fork("geometry").uniform((5,)) - 1
    angle, scale, contrast = draw[:, 0] * pi / 12, 1 + 0.15 * draw[:, 1], 1 + 0.2 * draw[:, 2]
    cosine, sine = angle.cos() / scale, angle.sin() / scale
    shift = draw[:, 3:] / 8  # affine_grid spans 2 units, so one of the 8 pixels is 1/4
    maps = torch.stack([cosine, -sine, shift[:, 0], sine, cosine, shift[:, 1]], dim=1).reshape(-1, 2, 3)
    grid = affine_grid(maps, list(pixels.shape), align_corners=False)
    moved = grid_sample(pixels, grid, align_corners=False) * contrast.reshape(-1, 1, 1, 1)
    return (moved + 0.05 * noise.fork("pixels").normal(pixels.shape[1:])).clamp(0, 1)


def nt_xent(one: Codes, two: Codes) -> Float[Tensor, ""]:
    """Return NT-Xent between two views of the same images."""
    codes = normalize(torch.cat([one, two]))
    similar = (codes @ codes.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return cross_entropy(similar, torch.arange(len(codes)).roll(len(one)))


def hardest(model: nn.Module, view: Images, other: Images, noise: Noise) -> Images:
    """Return ``view``, moved by at most ``EPS`` per pixel, whose code matches that of ``other`` as badly as can be found."""
    frozen = Encoder(model, "encoder in training", DOMAIN)
    with torch.no_grad():
        others = normalize(frozen.forward(other))

    def objective(codes: Codes) -> Float[Tensor, "b"]:
        similar = normalize(codes) @ others.T / TEMPERATURE
        return cross_entropy(similar, torch.arange(len(codes)), reduction="none")

    attack = GradientAttack(steps=STEPS, stride=2.5 / STEPS, keep="last")
    return attack(frozen, view, objective, Linf(EPS), noise)


def supervised(model: nn.Module, pixels: Images, labels: Int[Tensor, "b"], noise: Noise) -> Float[Tensor, ""]:
    """Return the cross-entropy of one view's classes."""
    return cross_entropy(model(augment(pixels, noise.fork("one"))), labels)


def contrastive(model: nn.Module, pixels: Images, labels: Int[Tensor, "b"], noise: Noise) -> Float[Tensor, ""]:
    """Return NT-Xent between two views (SimCLR)."""
    return nt_xent(model(augment(pixels, noise.fork("one"))), model(augment(pixels, noise.fork("two"))))


def robust(model: nn.Module, pixels: Images, labels: Int[Tensor, "b"], noise: Noise) -> Float[Tensor, ""]:
    """Return the mean NT-Xent over the pairs of three views, one of them attacked, and RoCL's small extra term."""
    views = augment(pixels, noise.fork("one")), augment(pixels, noise.fork("two"))
    one, two, moved = (model(view) for view in (*views, hardest(model, *views, noise)))
    return (nt_xent(one, two) + nt_xent(one, moved) + nt_xent(two, moved)) / 3 + nt_xent(moved, two) / 256


def classifier() -> nn.Module:
    """Return the head that tells the ten digits apart."""
    return nn.Linear(32, 10)


def projection() -> nn.Module:
    """Return the head in whose output the contrastive losses live."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


RECIPES = {
    "digits-random": Recipe("initial weights of torch's default initialisation, not trained"),
    "digits-supervised": Recipe("cross-entropy with a linear head, on augmented digits", supervised, classifier),
    "digits-contrastive": Recipe("SimCLR: NT-Xent between two views, without labels", contrastive, projection),
    "digits-robust": Recipe(
        f"RoCL: NT-Xent over two views and one attacked inside linf:{EPS:g}, without labels", robust, projection, EPS
    ),
}


def train(name: str, epochs: int = EPOCHS) -> Encoder:
    """Return the encoder that ``RECIPES[name]`` makes in ``epochs`` passes over the training digits."""
    recipe = RECIPES[name]
    torch.manual_seed(SEED)
    encoder = Digits().build(DOMAIN)
    if recipe.loss is None:
        return Encoder(encoder, name, DOMAIN)
    model = nn.Sequential(encoder, recipe.head())
    images = digits("digits-train")
    pixels, labels, noise = images.pixels(range(len(images))), images.labels, Noise.of(SEED, images.ids)
    assert labels is not None
    order = torch.Generator().manual_seed(SEED)  # its own, for the heads draw different numbers of weights
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    for epoch in range(epochs):
        for rows in torch.randperm(len(images), generator=order).split(BATCH):
            value = recipe.loss(model, pixels[rows], labels[rows], noise[rows].fork(epoch))
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            schedule.step()
    return Encoder(encoder, name, DOMAIN)


def write(encoder: Encoder) -> None:
    """Write the weights as safetensors and, beside them, the card."""
    recipe, weights = RECIPES[encoder.name], save(encoder.module.state_dict())
    card = {
        "name": encoder.name,
        "recipe": recipe.summary,
        "command": "python scripts/train_builtin.py",
        "network": "Conv(1, 8, 3, stride 2, padding 1) ReLU Conv(8, 16, 3, stride 2, padding 1) ReLU Linear(64, 32)",
        "parameters": encoder.parameters,
        "training_images": "builtin:digits-train",
        "seed": SEED,
        "epochs": EPOCHS if recipe.loss else 0,
        "eps": recipe.eps,
        **{key: round(value, 4) for key, value in accuracies(encoder).items()},
        "weights_sha256": sha256(weights).hexdigest(),
        "weights_bytes": len(weights),
        "torch": torch.__version__,
    }
    (WEIGHTS / f"{encoder.name}.safetensors").write_bytes(weights)
    (WEIGHTS / f"{encoder.name}.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Train and write all encoders, then print what they are worth."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    WEIGHTS.mkdir(exist_ok=True)
    for name in NAMES:
        encoder = train(name)
        write(encoder)
        print(f"wrote {name}, fingerprint {encoder.fingerprint}", flush=True)
    print(table())


if __name__ == "__main__":
    main()
