"""Plain forwards and gradients, the network as it was built and as it is arranged: processor ms an image, user and system.

The floor of an attack step is a forward and a backward of the same network and batch.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments
from benchmarks.speed.attack_steps import encoders
from holdfast.attacks.base import gain_and_gradient
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.simple import Away
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise
from holdfast.core.objective import AttackContext, ObjectiveFunction
from holdfast.core.optimised import codes_of, optimisation, optimised
from holdfast.encoders.architectures.vit import Patches, VisionTransformer
from holdfast.run.plan import attacked_together, keep_freed_memory

STEPS = 5
CLEAN = 27
"""Images of 224 pixels in a shard of clean codes."""


def networks() -> dict[str, Encoder]:
    """Return the networks, with random weights, which take as long as any."""
    chosen = {name.partition(",")[0]: encoder for name, (encoder, _) in encoders().items()}
    chosen["ViT-S"] = _encoder("ViT-S", VisionTransformer(Patches(3, 16, 384, 196), 12, 6, "cls"))
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        print("without EfficientNet-Lite0: pip install efficientnet-lite-pytorch")
        return chosen
    network = EfficientNet.from_name("efficientnet-lite0")
    network._fc, network._dropout = nn.Identity(), nn.Identity()
    return {**chosen, "EfficientNet-Lite0": _encoder("EfficientNet-Lite0", network)}


def _encoder(name: str, network: nn.Module) -> Encoder:
    return Encoder(network.eval(), name, Domain((3, 224, 224)), mean=(0.5,) * 3, std=(0.5,) * 3)


def spent(works: Sequence[Callable[[], object]], count: int, repeats: int) -> list[tuple[float, float]]:
    """Return the user and system milliseconds of an image for each of ``works``, which take turns: the least."""
    times = [[_spent(work) for work in works] for _ in range(repeats + 1)][1:]
    least = [min(of_one, key=sum) for of_one in zip(*times, strict=True)]
    return [(1e3 * user / count, 1e3 * system / count) for user, system in least]


def _spent(work: Callable[[], object]) -> tuple[float, float]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def plain(encoder: Encoder, pixels: Tensor) -> None:
    """One forward of all without gradients."""
    with torch.no_grad():
        encoder.forward(pixels)


def climbs(encoder: Encoder, pixels: Tensor, objective: ObjectiveFunction) -> None:
    """Forwards and backwards to the input."""
    for _ in range(STEPS):
        gain_and_gradient(encoder, pixels, objective)


def line(encoder: Encoder, kept: bool, repeats: int) -> str:
    """Return what is measured of an encoder, before or after."""
    real = encoder.domain.shape[1] == 224
    quick = optimised(encoder) if kept else encoder
    many, few = (CLEAN, attacked_together(encoder) if kept else 1) if real else (256, 13)
    pixels = torch.rand(many, *encoder.domain.shape)
    moved, noise = pixels[:few], Noise.of(0, [str(k) for k in range(few)])
    objective, start = Away()(AttackContext(quick, moved, noise)), encoder.domain.clip(moved + 0.01)
    (codes,) = spent([partial(codes_of if kept else plain, encoder, pixels)], many, repeats)
    attack = partial(GradientAttack(steps=STEPS, keep="last"), quick, moved, objective, Linf(0.02), noise)
    gradient, step = spent([partial(climbs, quick, start, objective), attack], few * STEPS, repeats)
    return (
        f"{optimisation(encoder) if kept else 'as it was built'}: codes of {many}: {codes[0]:.2f} + {codes[1]:.2f}; forward "
        f"and backward of {few}: {gradient[0]:.2f} + {gradient[1]:.2f}; attack step {sum(step) / sum(gradient):.2f} x"
    )


def main() -> None:
    """Print each network before and after, then the attack step over the floor."""
    given = arguments(__doc__ or "")
    chosen = networks()
    for kept in (False, True):
        if kept and not keep_freed_memory():
            print("this C library keeps no memory")
        for name, encoder in chosen.items():
            print(f"{name:20s} {line(encoder, kept, given.repeats)}", flush=True)


if __name__ == "__main__":
    main()
