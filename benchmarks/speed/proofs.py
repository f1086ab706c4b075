"""What proofs cost: processor seconds of making and of checking them, and their size.

``python -m benchmarks.speed.proofs`` proves the first image of MNIST apart from the next two, for networks with published
weights (HOLDFAST_REFERENCE), at a radius that each method certifies.
"""

from __future__ import annotations

import time

import torch

from benchmarks import published
from holdfast.bounds import read_method
from holdfast.bounds.network.tracing import trace
from holdfast.bounds.proofs.checking import check
from holdfast.bounds.proofs.making import choices, plain_network
from holdfast.bounds.proofs.proof import Proof
from holdfast.bounds.proofs.proof_files import packed
from holdfast.bounds.regions import region
from holdfast.core.balls import Linf

CASES = (("mnist_base", "crown", 0.02), ("mnist_cnn_4layer_a_adv3", "crown", 0.05), ("mnist_base", "alpha", 0.02))


def main() -> None:
    """Print a line for each network and method."""
    torch.set_num_threads(1)
    root = published.folder()
    assert root, "HOLDFAST_REFERENCE is not set"
    for weights, name, eps in CASES:
        encoder = published.encoder(root, weights)
        pixels = published.images(root, encoder.domain.shape[0], 3).double()
        graph = trace(encoder)
        codes = encoder.to("cpu", torch.float64).forward(pixels)
        codes = codes / codes.norm(dim=1, keepdim=True)
        around = region(pixels[:1], Linf, torch.tensor([eps], dtype=torch.float64), encoder.domain)
        began = time.process_time()
        chosen = choices(graph, around, (codes[:1] - codes[1:])[None], read_method(name))
        made = time.process_time()
        rows = pixels.flatten(1).numpy()
        proof = Proof("image", ("one", "two"), eps, rows[0], rows[1:], chosen.claims, chosen.slopes, chosen.leaves)
        network = plain_network(graph, encoder.domain)
        lowered = time.process_time()
        least = min(check(network, proof).values())
        checked = time.process_time()
        print(
            f"{weights} by {name} at {eps}: bound {least:.4f}, made in {made - began:.2f} s, checked in "
            f"{checked - lowered:.2f} s, {len(packed(proof.arrays())) / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
