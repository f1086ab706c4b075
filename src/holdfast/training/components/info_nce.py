"""InfoNCE: a query finds its own key among the keys of all images of the batch.

    loss_i = -log( exp(q_i.k_i / T) / sum_j exp(q_i.k_j / T) ),    q, k of length 1

van den Oord et al. 2018, https://arxiv.org/abs/1807.03748, equation 4.
"""

from __future__ import annotations

from torch.nn.functional import cross_entropy, normalize

from holdfast.core.encoder import Codes
from holdfast.objectives.base import ObjectiveFunction
from holdfast.training.gathering import gathered, own_rows


def info_nce(keys: Codes, temperature: float) -> ObjectiveFunction:
    """Return each query's loss as a function of the queries; their ``keys`` stand among those of all processes.

    Example:
        >>> import torch
        >>> keys = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> info_nce(keys, temperature=0.1)(keys)
        tensor([4.5...e-05, 4.5...e-05])
    """
    everybody, rows = gathered(normalize(keys, dim=1)), own_rows(len(keys), keys.device)
    return lambda queries: cross_entropy(normalize(queries, dim=1) @ everybody.T / temperature, rows, reduction="none")
