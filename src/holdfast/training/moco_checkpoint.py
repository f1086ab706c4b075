"""Checkpoints of the program of MoCo's authors: encoder, projection, key network, queue and momentum of the optimiser.

``main_moco.py`` (https://github.com/facebookresearch/moco) saves ``epoch, arch, state_dict, optimizer``. The state dict has
``module.encoder_q.*`` and ``module.encoder_k.*``, whose ``fc.*`` is the projection, ``module.queue`` (d, keys) and
``module.queue_ptr``. Published files were stripped: they lack the key network, the queue and the optimiser.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import Conflict, HoldfastWarning, OutOfRange, Unreadable, existing
from holdfast.encoders.loading.inputs import inside
from holdfast.encoders.loading.weights import Weights, beginnings, fit, read_torch
from holdfast.training.learner import Learner
from holdfast.training.objectives.contrastive import MoCoV2Learner

WRAPPER, QUERY, KEY, HEAD = "module.", "encoder_q.", "encoder_k.", "fc."
QUEUE, POINTER = "queue", "queue_ptr"
MOMENTUM = "momentum_buffer"
"""What SGD remembers of each weight."""


@dataclass(frozen=True, eq=False)
class MoCoCheckpoint:
    """What a file of MoCo's authors' program holds."""

    path: Path
    """File."""
    sha256: str
    """Checksum of the file."""
    arch: str
    """Network, as torchvision calls it; empty if the file does not say."""
    weights: Weights
    """Tensors of the state dict, without ``module.`` before their names."""
    momenta: tuple[Tensor | None, ...]
    """What SGD remembers of each weight of both networks, in their order; empty without an optimiser."""

    @classmethod
    def read(cls, name: str | Path) -> MoCoCheckpoint:
        """Read a checkpoint as data alone.

        Raises:
            HoldfastError: The file does not exist, is damaged, holds objects, or is no checkpoint of MoCo v1 or v2.
        """
        path = existing(str(name))
        content = read_torch(path)
        state = content.get("state_dict") if isinstance(content, dict) else None
        if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
            raise _no_checkpoint(path, "it has no state_dict of tensors")
        weights = {str(key).removeprefix(WRAPPER): value for key, value in state.items()}
        if not any(key.startswith(QUERY) for key in weights):
            raise _no_checkpoint(path, f"its state_dict has no {WRAPPER}{QUERY}*, but {beginnings(state)}")
        if (QUEUE in weights) != (POINTER in weights):
            raise _no_checkpoint(path, f"it has only one of {QUEUE} and {POINTER}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        momenta = () if content.get("optimizer") is None else _momenta(content["optimizer"], path)
        return cls(path, digest, str(content.get("arch") or ""), weights, momenta)

    def fill(self, learner: Learner) -> None:
        """Put encoder, projection, key network and queue into a new learner, and warn of parts that the file lacks.

        Args:
            learner: Learner of the objective ``moco-v2``, which has copied nothing yet.

        Raises:
            HoldfastError: The objective is another one, or a tensor is missing or has another shape.
        """
        if not isinstance(learner, MoCoV2Learner):
            raise Conflict("moco", f"{self.path.name} and another objective", "objective moco-v2")
        learner.network.load_state_dict(self._fitted(QUERY, learner.network))
        new = list[str]()
        if any(key.startswith(KEY) for key in self.weights):
            learner.key_network.load_state_dict(self._fitted(KEY, learner.network))
            # The authors move the key network before each step, here it has moved after the step before.
            learner.move_key_network()
        else:
            learner.key_network.load_state_dict(learner.network.state_dict())
            new.append("the key network (a copy of the query network)")
        if QUEUE in self.weights:
            self._fill_queue(learner)
        else:
            new.append("the queue (random keys)")
        if not self.momenta:
            new.append("the optimiser's momentum (0)")
        if new:
            warnings.warn(
                f"{self.path.name}: a stripped checkpoint. These start afresh: {'; '.join(new)}. To continue them, pass a "
                "file of main_moco.py.",
                HoldfastWarning,
                stacklevel=2,
            )

    def _fill_queue(self, learner: MoCoV2Learner) -> None:
        keys, place = self.weights[QUEUE].T, self.weights[POINTER].flatten()
        if keys.shape != learner.queue.shape:
            raise OutOfRange(
                f"queue of {self.path.name}",
                "{} keys of {} numbers".format(*keys.shape) if keys.ndim == 2 else f"{keys.ndim} axes",
                "{} keys of {} numbers, as the objective's".format(*learner.queue.shape),
                fix=f"set objective=moco-v2:queue={len(keys)}, and a batch that divides it",
            )
        if len(place) != 1 or not 0 <= int(place[0]) < len(keys):
            raise OutOfRange(f"{POINTER} of {self.path.name}", place.tolist(), f"one of 0 to {len(keys) - 1}")
        learner.queue.copy_(keys)
        learner.oldest.copy_(place[0])

    def _fitted(self, side: str, network: nn.Module) -> Weights:
        """Return the tensors of the query or key network under the names of ``network``: an encoder and a projection."""
        assert isinstance(network, nn.Sequential)
        encoder, head = network
        own = {key.removeprefix(side): value for key, value in self.weights.items() if key.startswith(side)}
        of_head = {key.removeprefix(HEAD): value for key, value in own.items() if key.startswith(HEAD)}
        if "weight" in of_head:  # of MoCo v1, a single layer
            of_head = {f"0.{key}": value for key, value in of_head.items()}
        layers, wanted = (sum(key.endswith("weight") for key in part) for part in (of_head, head.state_dict()))
        if layers != wanted:
            raise OutOfRange(
                f"projection {side}{HEAD} of {self.path.name}",
                f"{layers} linear layers",
                f"{wanted} linear layers, as the objective's",
                fix=f"set objective=moco-v2:linear={str(layers == 1).lower()}" if layers else "pass a whole checkpoint",
            )
        name = f"{self.path.name}, {side.rstrip('.')}"
        advice = (
            f"the file is of {self.arch}: set architecture={self.arch}" if self.arch else "set another architecture"
        )
        body = {key: value for key, value in own.items() if not key.startswith(HEAD)}
        bare = inside(encoder)
        outer = {f"0.{key}": value for key, value in encoder.state_dict().items()}
        inner = "0.module." if bare is not encoder else "0."
        fitted = {f"{inner}{key}": value for key, value in fit(body, bare, name, advice).items()}
        shapes = "set hidden and projection of moco-v2"
        return outer | fitted | {f"1.{key}": value for key, value in fit(of_head, head, name, shapes).items()}

    def continue_momentum(self, learner: Learner, optimiser: torch.optim.Optimizer) -> None:
        """Give an optimiser the momentum that the file has of each weight, if it has any.

        Args:
            learner: Learner that ``fill`` has filled.
            optimiser: Optimiser of its weights, before the first step.

        Raises:
            HoldfastError: The optimiser has no momentum, or the file has that of other weights.
        """
        if not self.momenta:
            return
        assert isinstance(learner, MoCoV2Learner)
        if not all(group.get("momentum") for group in optimiser.param_groups):
            raise Conflict("moco", f"SGD's momentum in {self.path.name}", "optimiser=sgd, whose momentum is above 0")
        weights = dict(learner.network.named_parameters())
        name_of = {id(value): name for name, value in self._fitted(QUERY, learner.network).items()}
        # SGD numbers the weights as the state dict orders them, without buffers, and those of the key network follow.
        stored = (name_of.get(id(value), "") for key, value in self.weights.items() if key.startswith(QUERY))
        order = [name for name in stored if name in weights]
        of_query, of_key = self.momenta[: len(order)], self.momenta[len(order) :]
        found = {name: value for name, value in zip(order, of_query, strict=False) if value is not None}
        wrong = [name for name, value in found.items() if value.shape != weights[name].shape]
        if len(found) < len(order) or wrong or any(value is not None for value in of_key):
            raise Unreadable(
                f"optimizer of {self.path.name}",
                f"it has momentum of {len(found)} weights that fit, of {len(order)} of {WRAPPER}{QUERY}*",
                fix="remove optimizer from the file to start without momentum",
            )
        places = [id(weight) for group in optimiser.param_groups for weight in group["params"]]
        names = {id(weight): name for name, weight in weights.items()}
        remembered = {place: {MOMENTUM: found[names[weight]]} for place, weight in enumerate(places)}
        optimiser.load_state_dict({**optimiser.state_dict(), "state": remembered})


def _momenta(optimiser: Any, path: Path) -> tuple[Tensor | None, ...]:
    """Return the momentum of each weight of the only group of ``optimiser``, the state of an SGD; none before a step."""
    try:
        (group,) = optimiser["param_groups"]
        # Before torch 1.6 weights had addresses instead of numbers, so their place in the group counts.
        momenta = tuple(optimiser["state"].get(weight, {}).get(MOMENTUM) for weight in group["params"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _no_checkpoint(path, "its optimizer is no state of SGD with one group of weights") from error
    if not all(value is None or isinstance(value, Tensor) for value in momenta):
        raise _no_checkpoint(path, f"its optimizer has a {MOMENTUM} that is no tensor")
    return momenta if any(value is not None for value in momenta) else ()


def _no_checkpoint(path: Path, reason: str) -> Unreadable:
    return Unreadable(str(path), reason, fix="name a file that MoCo's main_moco.py wrote")
