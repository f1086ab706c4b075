"""Plain forwards and gradients, the network as it was built and as it is arranged: processor ms an image, user and system.

The floor of an attack is the quicker of both at the batch that is chosen for it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.measure import arguments
from benchmarks.speed.attack_steps import encoders
from holdfast.attacks.base import climb
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.arrangement import arranged, arrangement
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.noise import Noise
from holdfast.encoders.architectures.vit import Patches, VisionTransformer
from holdfast.execution.tuning import attacked_together, keep_freed_memory
from holdfast.objectives.away import Away
from holdfast.objectives.base import AttackContext

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


def spent(work: Callable[[], object], count: int, repeats: int) -> tuple[float, float]:
    """Return the user and system milliseconds of an image, those of the quickest of ``repeats``."""
    work()
    times = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_SELF)
        work()
        after = resource.getrusage(resource.RUSAGE_SELF)
        times.append((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))
    user, system = min(times, key=sum)
    return 1e3 * user / count, 1e3 * system / count


def forward(encoder: Encoder, pixels: Tensor) -> None:
    """One forward without gradients."""
    with torch.no_grad():
        encoder.forward(pixels)


def main() -> None:
    """Print each network before and after, then the attack step over the floor."""
    given = arguments(__doc__ or "")
    chosen = networks()
    batches = {name: (CLEAN if encoder.domain.shape[1] == 224 else 256) for name, encoder in chosen.items()}
    for kept in (False, True):
        if kept and not keep_freed_memory():
            print("this C library keeps no memory")
        for name, encoder in chosen.items():
            quick = arranged(encoder) if kept else encoder
            many, few = (
                batches[name],
                1 if encoder.domain.shape[1] == 224 and not kept else max(1, attacked_together(encoder)),
            )
            few = few if encoder.domain.shape[1] == 224 else 13
            pixels = torch.rand(many, *encoder.domain.shape)
            moved, noise = pixels[:few], Noise.of(0, [str(k) for k in range(few)])
            objective = Away()(AttackContext(quick, moved, noise))
            start = encoder.domain.clip(moved + 0.01)
            codes = spent(partial(forward, quick, pixels), many, given.repeats)
            gradient = spent(lambda: [climb(quick, start, objective) for _ in range(STEPS)], few * STEPS, given.repeats)
            attack = GradientAttack(steps=STEPS, keep="last")
            step = spent(lambda: attack(quick, moved, objective, Linf(0.02), noise), few * STEPS, given.repeats)
            label = arrangement(encoder) + ", memory kept" if kept else "as it was built"
            print(
                f"{name:20s} {label}: forward of {many}: {codes[0]:.2f} + {codes[1]:.2f}; forward and backward of {few}: "
                f"{gradient[0]:.2f} + {gradient[1]:.2f}; attack step {sum(step) / sum(gradient):.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    main()
