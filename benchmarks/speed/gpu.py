"""What a run costs beside the plain network on the same device: codes, attack steps, noisy copies, by precision.

Made for GPUs: ``python -m benchmarks.speed.gpu --device cuda``. Networks have random weights, which take as long as any.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments, ratio, seconds
from benchmarks.speed.attack_steps import encoders
from holdfast.attacks.base import gain_and_gradient
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.images import Images
from holdfast.core.objective import ObjectiveFunction
from holdfast.core.run_settings import PRECISIONS, RunSettings, without_tf32
from holdfast.encoders.architectures.vit import Patches, VisionTransformer
from holdfast.measure.population import Population
from holdfast.smoothing.index import Smoothing
from holdfast.smoothing.noisy_codes import NoisyCodes

BATCHES, STEPS, COPIES = 4, 10, 2048
FASTER = ("float32", "bfloat16", "float16")


def networks() -> Iterator[tuple[str, Encoder, int]]:
    """Yield networks from tiny to large, with the batch of each."""
    for name, (encoder, _) in encoders().items():
        yield name, encoder, 512
    try:
        from torchvision.models import resnet50
    except ImportError:
        print("without ResNet-50: pip install torchvision")
    else:
        network = resnet50()
        network.fc = nn.Identity()
        yield "ResNet-50, 224 pixels", _encoder(network), 128
    yield "ViT-B/16, 224 pixels", _encoder(VisionTransformer(Patches(3, 16, 768, 196), 12, 12, "cls")), 128


def _encoder(network: nn.Module) -> Encoder:
    return Encoder(network.eval(), "large", Domain((3, 224, 224)), mean=(0.5,) * 3, std=(0.5,) * 3)


def plain(encoder: Encoder, pixels: Tensor, times: int) -> None:
    """The floor of codes: the same batch through the network, which is on the device already."""
    with torch.no_grad():
        for _ in range(times):
            encoder.forward(pixels)


def climbs(encoder: Encoder, pixels: Tensor, objective: ObjectiveFunction) -> None:
    """The floor of attacks: forwards and backwards to the input."""
    for _ in range(STEPS):
        gain_and_gradient(encoder, pixels, objective)


def waits(work: Callable[[], object]) -> int:
    """Return how often ``work`` makes the processor wait for the GPU."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchron" in str(warning.message) for warning in seen)


def line(encoder: Encoder, batch: int, run: RunSettings, repeats: int) -> str:
    """Return what is measured of an encoder in the precision of ``run``."""
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (batch * BATCHES, *encoder.domain.shape), generator=generator, dtype=torch.uint8)
    images = Images(stored)
    population = Population(encoder, images, run)
    pixels = population.pixels(range(batch))

    floor = partial(plain, population.encoder, pixels, BATCHES)
    codes, _, theirs = ratio(lambda: Population(population.encoder, images, run).codes, floor, run.device, repeats)

    context = population.context(range(batch))
    objective, start = Away()(context), encoder.domain.clip(pixels + 0.01)
    attack = partial(GradientAttack(steps=STEPS), context.encoder, pixels, objective, Linf(0.02), context.noise)
    climbing = partial(climbs, context.encoder, start, objective)
    step, ours, _ = ratio(attack, climbing, run.device, repeats)

    asked = NoisyCodes(Smoothing(0.25, 256, COPIES - 512, 1, 1), (L2Distance(),), ())
    population.learned(asked.smoothing.index)
    rows = asked.rows(population)
    copied = partial(plain, population.encoder, pixels, COPIES // batch)
    copies, _, _ = ratio(partial(asked.observe, population, rows), copied, run.device, repeats)
    return (
        f"{batch * BATCHES / theirs:8.0f} images/s plain; codes {codes:.2f} x; attack step {step:.2f} x "
        f"({1e3 * ours / STEPS:.1f} ms); {COPIES} noisy copies {copies:.2f} x"
        + (f"; an attack of {STEPS} steps waits {waits(attack)} times" if run.device.startswith("cuda") else "")
    )


@torch.no_grad()
def rounding(encoder: Encoder, batch: int, device: str, repeats: int) -> str:
    """Return how far codes are from those in float64, relative to their length, and images a second, by precision."""
    pixels = torch.rand(batch, *encoder.domain.shape, generator=torch.Generator().manual_seed(0)).to(device)
    exact = encoder.to(device, torch.float64).forward(pixels[:16].double())
    cases: list[tuple[str, str, Callable[[], AbstractContextManager[None]]]] = [
        ("whole float32", "float32", without_tf32)
    ]
    cases += [(name, name, nullcontext) for name in FASTER]
    parts = []
    for label, precision, context in cases:
        placed, inputs = encoder.to(device, PRECISIONS[precision]), pixels.to(PRECISIONS[precision])
        with context():
            error = float((placed.forward(inputs[:16]).double() - exact).norm() / exact.norm())
            works = sorted(seconds(partial(plain, placed, inputs, BATCHES), device) for _ in range(repeats + 1))
        parts.append(f"{label} {error:.0e} ({batch * BATCHES / works[repeats // 2]:.0f}/s)")
    return "; ".join(parts)


def main() -> None:
    """Print each network in each precision."""
    given = arguments((__doc__ or "").partition("\n")[0])
    with without_tf32():
        for name, encoder, batch in networks():
            for precision in FASTER:
                run = RunSettings(device=given.device, precision=precision, batch_size=batch)
                print(f"{name:26s} {precision:9s} {line(encoder, batch, run, given.repeats)}", flush=True)
    for name, encoder, batch in networks():
        print(f"{name:26s} {rounding(encoder, batch, given.device, given.repeats)}", flush=True)


if __name__ == "__main__":
    main()
