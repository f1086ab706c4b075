"""Images made by a small conditional variational autoencoder, the stand-in for a generator of images.

    minimise over encoder and decoder:   mean of  -log p(x | z, y)  +  KL(N(m(x, y), s(x, y)^2) | N(0, 1)),
    with  log p(x | z, y) = sum of x log d(z, y) + (1 - x) log(1 - d(z, y)) over pixels

and images ``d(z, y)`` of random ``z`` (Kingma and Welling 2014, https://arxiv.org/abs/1312.6114; Sohn et al. 2015).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, LATENT = 256, 16


class ConditionalAutoencoder(nn.Module):
    """Two layers each way; the class is told to both by one number for each."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.encode = nn.Sequential(nn.Linear(pixels + classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.decode = nn.Sequential(nn.Linear(LATENT + classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, pixels))

    def beside(self, x: Float[Tensor, "b d"], labels: Int[Tensor, "b"]) -> Float[Tensor, "b e"]:
        """Return ``x`` with the classes beside it."""
        return torch.cat([x, functional.one_hot(labels, self.classes).to(x)], 1)

    def loss(self, x: Float[Tensor, "b d"], labels: Int[Tensor, "b"]) -> Float[Tensor, ""]:
        """Return the mean of the negative evidence bound."""
        mean, log_variance = self.encode(self.beside(x, labels)).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        lost = functional.binary_cross_entropy_with_logits(self.decode(self.beside(z, labels)), x, reduction="sum")
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
        return (lost + divergence) / len(x)


def generated(
    pixels: Float[Tensor, "n c h w"], labels: Int[Tensor, "n"], count: int, epochs: int, seed: int
) -> tuple[Float[Tensor, "m c h w"], Int[Tensor, "m"]]:
    """Return ``count`` images of each class in [0, 1], and their labels, by an autoencoder of these images."""
    classes = int(labels.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ConditionalAutoencoder(pixels[0].numel(), classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(pixels)).split(128):
                optimiser.zero_grad()
                model.loss(pixels[rows].flatten(1), labels[rows]).backward()
                optimiser.step()
        made = torch.arange(classes).repeat_interleave(count)
        with torch.no_grad():
            images = model.decode(model.beside(torch.randn(len(made), LATENT), made)).sigmoid()
    return images.unflatten(1, pixels.shape[1:]), made
