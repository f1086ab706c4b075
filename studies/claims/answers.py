"""What probes on an encoder answer, image by image: 1 where right, else 0."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float

import holdfast as hf
from holdfast.attacks.objectives.simple import margin_of_logits as margin
from holdfast.attacks.presets import read_attack
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from studies.claims.measures import STRONG

Right = Float[np.ndarray, "n"]


def right(population: Population, probe: Probe) -> Right:
    """Return where the probe, which learned from the bank, gives an image its label."""
    fitted = population.learned(probe)
    with torch.no_grad():
        codes = fitted.encoder.forward(population.pixels(range(len(population.images))))
    answers: Right = (fitted.scores(codes).argmax(1) == fitted.places(population.labels)).double().numpy()
    return answers


def robustly_right(population: Population, probe: Probe, eps: float) -> Right:
    """Return where the probe does so for every change that an adaptive attack on it tries."""
    fitted, rows = population.learned(probe), range(len(population.images))
    context, places = population.context(rows), fitted.places(population.labels)
    moved = read_attack(STRONG)(
        fitted.encoder, context.pixels, margin(fitted.logits, places), hf.Linf(eps), context.noise.fork("probe")
    )
    with torch.no_grad():
        attacked = fitted.scores(fitted.encoder.forward(moved)).argmax(1) == places
    return np.minimum(right(population, probe), attacked.double().numpy())
