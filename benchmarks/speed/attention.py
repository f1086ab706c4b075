"""How much of the attacked radius is certified of vision transformers, and what the range of attention's averages adds.

``python -m benchmarks.speed.attention`` builds transformers of two and four blocks on 8 x 8 images, trains each for a
few seconds to tell digits apart, and compares the radii that CROWN certifies with those that attacks reach, with and
without the rule for averages weighted by a softmax. Processor seconds, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounds import Crown, certified_radius
from holdfast.bounds.network import network_graph as graphs
from holdfast.bounds.network.network_graph import Builder, Var
from holdfast.bounds.relaxations import Rule
from holdfast.core.balls import Linf
from holdfast.core.encoder import Domain, Encoder
from holdfast.encoders.architectures.vit import Patches, VisionTransformer

DOMAIN = Domain((1, 8, 8))
ANCHORS, NEGATIVES, STEPS, WIDTH = 4, 2, 300, 16
TOLERANCE = 3e-4
"""Of the search of radii."""


def transformer(depth: int, images: Tensor, labels: Tensor) -> Encoder:
    """Return a transformer of that many blocks, trained to classify; its code are the logits."""
    torch.manual_seed(depth)
    body = VisionTransformer(Patches(1, 4, WIDTH, 4), depth, 2, "mean")
    module = nn.Sequential(body, nn.Linear(WIDTH, 10))
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    for step in range(STEPS):
        rows = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step))
        noisy = (images[rows] + 0.1 * torch.randn(64, 1, 8, 8)).clamp(0, 1)
        loss = nn.functional.cross_entropy(module(noisy), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return Encoder(module.eval(), f"{depth} blocks", DOMAIN)


@contextmanager
def without_rule() -> Iterator[None]:
    """Trace attention as it was: averages are the sums of products that they are made of."""
    original = Builder.known

    def known(self: Builder, rule: Rule, var: Var, *context: Var) -> Var:
        return var

    graphs.Builder.known = known  # type: ignore[method-assign]
    try:
        yield
    finally:
        graphs.Builder.known = original  # type: ignore[method-assign]


def attacked_radius(encoder: Encoder, anchors: Tensor, specifications: Tensor) -> Tensor:
    """Return the least radius, of a grid, at which steepest descent on each specification succeeds, (b, s)."""
    radii = torch.full(specifications.shape[:2], torch.inf, dtype=torch.float64)
    for eps in torch.logspace(-3.5, 0, 36, dtype=torch.float64).tolist():
        for k in range(specifications.shape[1]):
            point = anchors.clone()
            for step in range(30):
                point.requires_grad_()
                value = (encoder.forward(point) * specifications[:, k]).sum(1)
                (slope,) = torch.autograd.grad(value.sum(), point)
                point = point.detach() - eps * (0.5 if step < 15 else 0.1) * slope.sign()
                point = torch.maximum(torch.minimum(point, anchors + eps), anchors - eps).clamp(0, 1)
                with torch.no_grad():
                    below = (encoder.forward(point) * specifications[:, k]).sum(1) < 0
                radii[:, k] = torch.where(below, radii[:, k].clamp_max(eps), radii[:, k])
    return radii


def main() -> None:
    source = hf.load_images("builtin:digits", Encoder(nn.Flatten(), "pixels", DOMAIN))
    images, labels = source.pixels(range(len(source))), torch.as_tensor(source.labels)
    anchors = images[:ANCHORS].double()
    for depth in (2, 4):
        encoder = transformer(depth, images, labels).to("cpu", torch.float64)
        codes = nn.functional.normalize(encoder(images[: ANCHORS + NEGATIVES].double()))
        pairs = torch.arange(ANCHORS)[:, None] + 1 + torch.arange(NEGATIVES)
        specifications = codes[:ANCHORS, None] - codes[pairs]
        attacked = attacked_radius(encoder, anchors, specifications)
        for name, context in (("without", without_rule), ("with", None)):
            fresh = Encoder(encoder.module, encoder.name, DOMAIN)
            began = time.process_time()
            if context is None:
                radii = certified_radius(fresh, anchors, specifications, Linf(0.1), Crown(), TOLERANCE)
            else:
                with context():
                    radii = certified_radius(fresh, anchors, specifications, Linf(0.1), Crown(), TOLERANCE)
            seconds = (time.process_time() - began) / ANCHORS
            share = (radii / attacked).mean()
            print(
                f"{depth} blocks, {name} the rule: certified {radii.mean():.6f}, attacked {attacked.mean():.5f}, "
                f"certified over attacked {share:.4f}, {seconds:.1f} s an anchor"
            )


if __name__ == "__main__":
    main()
