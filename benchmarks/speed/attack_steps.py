"""Gradient attacks against their floor: one forward and one backward to the input, for the same batch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, ratio
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.attacks.base import Attack, gain_and_gradient
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import L1, L2, Ball, Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext, ObjectiveFunction
from holdfast.run.plan import keep_freed_memory

STEPS = 20


class Block(nn.Module):
    """A residual block with batch norm, as in ResNet-18."""

    def __init__(self, wide: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = nn.Conv2d(wide, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def encoders() -> dict[str, tuple[Encoder, int]]:
    """Return encoders from tiny to usual, with a batch size each."""
    cnn = [
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, 100),
    ]
    blocks = [Block(16, 32, 1), Block(32, 64, 2), Block(64, 128, 2)]
    residual = [nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return {
        "CNN-A, 1 x 28 x 28": (Encoder(nn.Sequential(*cnn).eval(), "cnn", Domain((1, 28, 28))), 256),
        "small ResNet, 3 x 32 x 32": (Encoder(nn.Sequential(*residual).eval(), "resnet", Domain((3, 32, 32))), 16),
    }


def main() -> None:
    """Print the cost per step of each attack as a ratio to the floor."""
    given = arguments(__doc__ or "")
    keep_freed_memory()  # as runs do
    for name, (encoder, batch) in encoders().items():
        encoder = encoder.to(given.device, torch.float32)
        pixels = torch.rand(batch, *encoder.domain.shape, device=given.device)
        noise = Noise.of(0, [str(k) for k in range(batch)], given.device)
        objective = Away()(AttackContext(encoder, pixels, noise))
        moved = encoder.domain.clip(pixels + 0.01 * torch.randn_like(pixels))
        floor = partial(floor_steps, encoder, moved, objective)
        cases: list[tuple[str, Attack, Ball]] = [
            ("pgd, last point, linf", GradientAttack(steps=STEPS, keep="last"), Linf(0.05)),
            ("pgd, best point, linf", GradientAttack(steps=STEPS), Linf(0.05)),
            ("pgd, best point, l2", GradientAttack(steps=STEPS), L2(1.0)),
            ("pgd, best point, l1", GradientAttack(steps=STEPS), L1(5.0)),
            ("adaptive, linf", AdaptiveAttack(restarts=1, steps=STEPS - 1), Linf(0.05)),
        ]
        for label, attack, ball in cases:
            work = partial(attack, encoder, pixels, objective, ball, noise)
            relative, ours, theirs = ratio(work, floor, given.device, given.repeats)
            per_step = f"{1e3 * ours / STEPS:.2f} ms per step, floor {1e3 * theirs / STEPS:.2f} ms"
            print(f"{name:28s} {label:24s} {relative:.3f} x ({per_step})")


def floor_steps(encoder: Encoder, pixels: Tensor, objective: ObjectiveFunction) -> None:
    """The floor: as many forwards and input-only backwards, and nothing else."""
    for _ in range(STEPS):
        gain_and_gradient(encoder, pixels, objective)


if __name__ == "__main__":
    main()
