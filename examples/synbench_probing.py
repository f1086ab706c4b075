"""Robust linear probing at the radius that SynBench suggests (Ko et al. 2023, https://arxiv.org/abs/2210.02989, section 4).

    python examples/synbench_probing.py [ENCODER] [--images IMAGES] [--bank IMAGES] [--limit 200]

SynBench scores the encoder, without data, at several budgets. A linear head is then trained against attacks of each of
these radii (l2), and a plain one beside them; all face the same attack, of the radius with the best score, and the same
corruptions, which none was trained on. The paper's claim is that the head of that radius keeps most.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import holdfast as hf
from holdfast import data
from holdfast.core.balls import L2
from holdfast.core.images import Images
from holdfast.core.records import Result
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy
from holdfast.probes.linear import Linear, RobustProbe
from holdfast.synthetic.evaluations.synbench import SynBench
from holdfast.transforms.base import Transform, transformed


def arguments() -> Namespace:
    """Return what the command line asks for."""
    parser = ArgumentParser(description="Robust linear probing at the radius that SynBench suggests.")
    parser.add_argument("encoder", nargs="?", default="builtin:digits-contrastive", help="which encoder to probe")
    parser.add_argument("--images", default="builtin:digits", help="labelled images to measure on")
    parser.add_argument("--bank", default="builtin:digits-train", help="labelled images to teach the probes")
    parser.add_argument("--limit", type=int, default=200, help="how many of each, at most")
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.2, 0.4, 0.6], help="radii to choose from, l2")
    parser.add_argument("--samples", type=int, default=256, help="synthetic samples at each scale")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of robust training")
    parser.add_argument(
        "--corruptions",
        nargs="+",
        default=["gaussian-noise-c:3", "contrast-c:3", "brightness-c:3"],
        help="what to add to images",
    )
    return parser.parse_args(sys.argv[1:])


def suggested(encoder: hf.Encoder, images: Images, budgets: Sequence[float], samples: int) -> tuple[float, Result]:
    """Return the budget at which the encoder's synthetic score is best, and all scores."""
    evaluation = SynBench(scales=tuple(0.4 * k for k in range(1, 13)), budgets=tuple(budgets), samples=samples)
    result = evaluation(encoder, images)
    found = [one for one in result.estimates if one.quantity == "mean_synbench_score"]
    best = max(found, key=lambda one: one.value)
    return budgets[found.index(best)], result


def corrupted_accuracy(population: Population, probe: Probe, corruptions: Sequence[Transform]) -> float:
    """Return the accuracy on corrupted images, the mean over ``corruptions``, of a probe that learned from clean ones."""
    fitted, shares, rows = population.learned(probe), [], range(len(population.images))
    for corruption in corruptions:
        changed = Population(population.encoder, transformed(population.images, corruption), population.run)
        ranks = fitted.ranks(fitted.codes(changed, rows), population.labels)
        shares.append(float((ranks == 0).double().mean()))
    return sum(shares) / len(shares)


def main() -> None:
    """Print the scores, then what each head keeps."""
    asked = arguments()
    encoder = hf.load_encoder(asked.encoder)
    images, bank = (
        data.load(one, encoder.domain, encoder.geometry, limit=asked.limit) for one in (asked.images, asked.bank)
    )
    best, scores = suggested(encoder, images, asked.budgets, asked.samples)
    for one in scores.estimates:
        if one.quantity == "mean_synbench_score":
            print(f"SynBench at {', '.join(one.conditions.values())}: {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]")
    print(f"suggested radius: {best:g}\n")
    robust = [RobustProbe(L2(budget), epochs=asked.epochs) for budget in asked.budgets]
    suggestion = robust[asked.budgets.index(best)]
    probes: tuple[Probe, ...] = (Linear(), *robust)
    evaluation = RobustAccuracy(balls=(L2(best),), probes=probes, samples=asked.limit)
    run = hf.RunSettings()
    result = evaluation(encoder, images, run, bank)
    population = Population(encoder, images, run, bank=Population(encoder, bank, run))
    corruptions = [Transform.read(text) for text in asked.corruptions]
    print("| head | clean | attacked | attack succeeds | corrupted |")
    print("|---|---|---|---|---|")
    for probe in probes:
        name = f"{probe}{' (suggested)' if probe == suggestion else ''}"
        clean = result.estimate("clean_accuracy", probe=str(probe)).value
        kept, lost = (
            result.estimate(quantity, probe=str(probe), attack="adaptive at the probe").value
            for quantity in ("robust_accuracy", "attack_success_rate")
        )
        print(
            f"| {name} | {clean:.3f} | {kept:.3f} | {lost:.3f} | {corrupted_accuracy(population, probe, corruptions):.3f} |"
        )


if __name__ == "__main__":
    main()
