"""RVCL's attack on instances, and the negatives that it makes from the anchor itself (Wang and Liu 2022, appendix E.1).

The program of the authors (https://github.com/wzekai99/RVCL, ``unsupervised_verification.py``) makes a negative ``x-`` of
an image ``x`` and then attacks ``x`` with it, both by 200 sign steps of one length from a random start:

    x- = argmax |f(z) - f(view(x))|^2 over z within eps_neg of x,    x' = argmin |f(z) - f(x-)|^2 over z within eps of x

The view is random: the one that the authors train with. Negatives near their anchor make certificates hard to prove.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from holdfast.attacks.base import Attack
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Ball
from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import HoldfastError
from holdfast.protocol.population import Population
from holdfast.transforms.augmentations.views import RvclCifarView, RvclMnistView
from holdfast.transforms.base import View

GRAY = GradientAttack(steps=200, step=0.005, keep="last")
"""The authors' attack on MNIST."""
COLOR = GradientAttack(steps=200, step=0.000225, keep="last")
"""Their attack on CIFAR-10: steps of 0.001 in units of normalised inputs, whose standard deviation is 0.225 of a pixel."""


def published_attack(domain: Domain) -> GradientAttack:
    """Return the authors' attack: that on CIFAR-10 for images of three channels, that on MNIST for all other inputs."""
    return COLOR if domain.shape[0] == 3 else GRAY


def published_view(domain: Domain) -> View:
    """Return the view that the authors attack away from: that of CIFAR-10 for three channels, that of MNIST for one.

    Raises:
        HoldfastError: inputs are no images, which have no such view.
    """
    views: dict[int, View] = {1: RvclMnistView(), 3: RvclCifarView()}
    if len(domain.shape) != 3 or domain.shape[0] not in views or (domain.low, domain.high) != (0, 1):
        raise HoldfastError(
            "generate: negatives are made of views of images of 1 or 3 channels in [0, 1], got inputs of shape "
            f"{domain.shape} in [{domain.low:g}, {domain.high:g}]. Leave generate out: negatives are then other images."
        )
    return views[domain.shape[0]]


def generated(population: Population, rows: Sequence[int], ball: Ball, attack: Attack) -> Pixels:
    """Return for each image one in ``ball`` around it, by ``attack`` away from the embedding of a view of the image."""
    context = population.context(rows)
    noise = context.noise.fork("negative")
    view = context.code(published_view(context.encoder.domain)(context.pixels, noise.fork("view")))

    def squared_distance(codes: Codes) -> Float[Tensor, "b"]:
        return (codes - view).square().mean(1)

    return attack(context.encoder, context.pixels, squared_distance, ball, noise)
