"""The speed of probes beside their floors: nearest neighbours beside the plain product, the linear head beside sklearn's."""

from __future__ import annotations

import resource
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.measure import arguments, ratio
from holdfast.core.encoder import Domain, Encoder
from holdfast.probes.linear import logistic_regression
from holdfast.probes.neighbours import Neighbours, unit

BANK, ASKED, FEATURES, CLASSES = 50_000, 10_000, 512, 10


def clustered(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return codes that scatter around a centre for each class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)) / 4
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + torch.randn(count, FEATURES, generator=generator), labels


def products(asked: Tensor, bank: Tensor) -> None:
    """The floor: the product in blocks of a size that favours it, results thrown away."""
    for block in asked.split(1000):
        block @ bank.T


def penalised_loss(weight: Tensor, bias: Tensor, codes: Tensor, labels: Tensor) -> float:
    """Return the loss that both solvers descend, per image, of a head on standardised codes."""
    fit = cross_entropy(codes @ weight.T + bias, labels, reduction="sum")
    return float(fit + weight.square().sum() / 2) / len(codes)


def linear_head(codes: Tensor, labels: Tensor, repeats: int) -> None:
    """Print how long the probe takes beside sklearn, and the losses they end at."""
    from sklearn.linear_model import LogisticRegression

    double = codes.double()
    spread, centre = double.std(0), double.mean(0)
    standardised = (double - centre) / spread
    learned = logistic_regression(codes, labels)
    found = (learned["weight"] * spread, learned["bias"] + learned["weight"] @ centre)
    print(f"linear probe: loss {penalised_loss(*found, standardised, labels):.9f}")
    for tolerance in (1e-4, 1e-6):
        fit = partial(LogisticRegression(tol=tolerance, max_iter=5000).fit, standardised.numpy(), labels.numpy())
        relative, ours, theirs = ratio(partial(logistic_regression, codes, labels), fit, "cpu", repeats)
        head = fit()
        loss = penalised_loss(torch.tensor(head.coef_), torch.tensor(head.intercept_), standardised, labels)
        print(
            f"sklearn, tol={tolerance:g}: loss {loss:.9f}; the probe takes {relative:.2f} x ({ours:.2f} s, {theirs:.2f} s)"
        )


def main() -> None:
    """Print the ratios."""
    given = arguments(__doc__ or "")
    (bank, columns), (asked, _) = clustered(BANK, 1), clustered(ASKED, 2)
    bank, asked, columns = unit(bank).to(given.device), asked.to(given.device), columns.to(given.device)
    encoder = Encoder(torch.nn.Identity(), "codes", Domain((FEATURES,)))
    for k in (20, 200):
        probe = Neighbours(
            encoder=encoder,
            classes=torch.arange(CLASSES, device=given.device),
            bank=bank,
            columns=columns,
            k=k,
            temperature=0.1,
        )
        relative, ours, theirs = ratio(
            partial(probe.scores, asked), partial(products, asked, bank), given.device, given.repeats
        )
        print(
            f"{ASKED} x {BANK} x {FEATURES}, k={k}: {1 / relative:.0%} of the product's rate ({ours:.2f} s, {theirs:.2f} s)"
        )
    print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB")
    linear_head(*clustered(BANK, 1), min(3, given.repeats))


if __name__ == "__main__":
    main()
