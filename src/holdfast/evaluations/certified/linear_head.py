"""A linear head on clean codes, and the margins by which it tells an image's class from the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from holdfast.bounds.network.affine import General
from holdfast.bounds.network.graph import Graph, Node
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.rounding.arithmetic import rigorous
from holdfast.bounds.rounding.executed_encoder import ExecutedEncoder
from holdfast.core.encoder import Encoder, Pixels
from holdfast.core.noise import Noise
from holdfast.core.run_settings import Observed
from holdfast.evaluations.certified.pairwise.pairs import CertifiedEncoder, Pairs
from holdfast.probes.linear import logistic_regression
from holdfast.protocol.fits import Fit
from holdfast.protocol.population import Population

TRAINING, POOL = 10_000, 1000
"""Images that a head is trained on, and of which one of another class is taken to begin an attack, at most."""


@dataclass(frozen=True)
class Classifier:
    """An encoder with a head, as an encoder whose codes are logits, in float64; ``classes`` are the labels they mean."""

    certified: CertifiedEncoder
    head: nn.Linear
    classes: Int[Tensor, "c"]

    def logits(self, pixels: Pixels) -> Float[Tensor, "b c"]:
        """Return the logits of ``pixels``."""
        return self.certified.codes(pixels)

    def on_codes_of(self, encoder: CertifiedEncoder) -> Classifier:
        """Return the same head, in float64, on the codes that certificates of ``encoder`` speak about."""
        if (executed := encoder.executed) is None:
            return self
        graph = with_head(executed.graph, self.head)
        computed, reference = (
            Encoder(HeadOnCodes(part.module, self.head), part.name, part.domain, caution=part.caution)
            for part in (executed.encoder, executed.reference)
        )
        executed = ExecutedEncoder(computed, reference, graph, executed.format)
        return replace(self, certified=CertifiedEncoder(self.certified.encoder, graph, executed))

    def places(self, labels: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return which logit each label means; -1 for labels that no logit means."""
        same = labels[:, None] == self.classes
        return torch.where(same.any(1), same.to(torch.int8).argmax(1), -1)

    def right(self, pixels: Pixels, columns: Int[Tensor, "b"]) -> Bool[Tensor, "b"]:
        """Return which images are classified as they should be: strictly, for a tie decides nothing."""
        logits = self.logits(pixels)
        logits_of_class = logits.gather(1, columns.clamp_min(0)[:, None])
        return (columns >= 0) & ((logits >= logits_of_class).sum(1) == 1)


@final
class HeadOnCodes(nn.Module):
    """A head in float64 on codes of any precision."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, pixels: Pixels) -> Float[Tensor, "b c"]:
        logits: Float[Tensor, "b c"] = self.head(self.encoder(pixels).double())
        return logits


def with_head(graph: Graph, head: nn.Linear) -> Graph:
    """Return the graph with ``head``, which rounds nothing but in the type of bounds, as its last operation."""
    codes, weight, bias = graph.nodes[-1], head.weight.detach(), head.bias.detach()
    operation = General(
        lambda x: linear(x, weight, bias),
        lambda radii: linear(radii, weight.abs()),
        [codes.shape],
        graph.dtype,
        graph.device,
    )
    node = Node(len(graph.nodes), "linear head", (*codes.shape[:-1], len(bias)), (codes.index,), operation)
    return replace(graph, nodes=(*graph.nodes, node))


@final
@dataclass(frozen=True)
class LinearHead(Fit[Classifier | None]):
    """A head by logistic regression on the clean codes of a labelled bank, else of all but the ``held_out`` first images.

    None without labels, or where the images left show fewer than two classes.
    """

    held_out: int
    name = "linear-head"
    version = 1
    uses_labels = True
    uses_bank = True

    def learn(self, population: Population) -> Observed:
        learned, rows = _teaching(population, self.held_out)
        labels = learned.images.labels
        if labels is None or len(set(torch.as_tensor(labels)[rows].tolist())) < 2:
            return {}
        return logistic_regression(learned.codes[rows], torch.as_tensor(labels)[rows], tolerance=1e-9)

    def restore(self, population: Population, learned: Observed) -> Classifier | None:
        return classifier(population.double, **learned, device=population.run.device) if learned else None


def _teaching(population: Population, held_out: int) -> tuple[Population, list[int]]:
    """Return from whose images a head is learned, and which: those of a labelled bank, or those that are not measured."""
    bank = population.bank_images
    if bank is not None and bank.labels is not None:
        return population.bank, list(range(len(bank)))
    return population, population.shuffled[held_out : held_out + TRAINING].tolist()


def classifier(
    encoder: Encoder,
    weight: Float[Tensor, "c d"],
    bias: Float[Tensor, "c"],
    classes: Int[Tensor, "c"],
    device: str = "cpu",
) -> Classifier:
    """Return ``encoder`` with the head ``weight . f + bias``."""
    head = nn.Linear(weight.shape[1], len(weight), dtype=torch.float64)
    head.load_state_dict({"weight": weight, "bias": bias})
    double = encoder.to(device, torch.float64)
    module = nn.Sequential(double.module, head.to(device)).eval()
    whole = Encoder(module, encoder.name, encoder.domain, caution=encoder.caution)
    return Classifier(CertifiedEncoder(whole, rigorous(trace(whole, torch.float64, device))), head, classes.to(device))


def margins(
    classifier: Classifier, pixels: Pixels, columns: Int[Tensor, "b"], pool: Float[Tensor, "n *pixels"], noise: Noise
) -> Pairs:
    """Return the margins ``y - j`` of each image's own class over every other one as pairs with specifications of logits.

    The ``negative`` of a pair is the image of ``pool`` that the head takes most clearly for ``j`` rather than ``y``. If
    it takes none for that, it is the corner of the domain that is farthest away, for the search may have to go there.

    Args:
        classifier: a linear head on the encoder.
        pixels: images, in float64.
        columns: the logit of each image's own class.
        pool: other images.
        noise: one stream for each pair.
    """
    count = len(classifier.classes)
    eye = torch.eye(count, dtype=pixels.dtype, device=pixels.device)
    classes_of_rows = eye[columns][:, None].expand(-1, count, -1)
    others = eye.expand(len(pixels), -1, -1)
    kept = torch.ones(len(pixels), count, dtype=torch.bool, device=pixels.device)
    kept[torch.arange(len(pixels)), columns] = False
    specifications = (classes_of_rows - others)[kept].reshape(len(pixels), count - 1, count)
    scores, chosen = (specifications @ classifier.logits(pool).mT).min(2)
    certified = classifier.certified
    low, high = certified.encoder.domain.low, certified.encoder.domain.high
    corner = torch.where(pixels < (low + high) / 2, high, low)[:, None]
    corner = torch.where(corner.isfinite(), corner, pool[chosen])  # a range without end has no corners
    misclassified = (scores < 0).reshape(*scores.shape, *(1,) * (pixels.ndim - 1))
    return Pairs(
        encoder=certified.encoder,
        graph=certified.graph,
        ids=(),
        anchors=pixels,
        negatives=torch.where(misclassified, pool[chosen], corner),
        specifications=specifications,
        noise=noise,
        executed=certified.executed,
    )
