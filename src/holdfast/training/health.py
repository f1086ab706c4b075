"""The health of a training: collapse of embeddings, checkpoints, requests to stop, and the page with its curves."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from io import BytesIO
from math import isfinite
from pathlib import Path
from pickle import UnpicklingError
from types import FrameType
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from holdfast.core.encoder import Codes
from holdfast.core.errors import HoldfastError, Unreadable
from holdfast.core.files import write_whole
from holdfast.core.points.points import points
from holdfast.encoders.trained import ASKED, CHECKPOINT, Card
from holdfast.geometry.spectrum import rankme
from holdfast.geometry.sphere import potentials
from holdfast.report.figures.svg import Line, draw
from holdfast.training.adversaries.base import untouched
from holdfast.training.processes import processes

# What can be seen of an encoder in training without labels: whether its codes fill their space, or collapse.
#
# ``spread`` is the deviation of single features of unit codes over images, times the root of their number: 1 for
# codes all around, 0 where all images have one code (Chen and He 2021, https://arxiv.org/abs/2011.10566, section
# 4.1).

COLLAPSED = 0.01
"""Below this spread all images have one code, up to noise."""
NEIGHBOURS = 20
CLASSES = 100
"""Classes up to which each has an accuracy of its own after each epoch."""
TOGETHER = 256
"""Images encoded at once."""
LOST = 0.5
"""Below this mean cosine similarity to the original codes, codes are no longer what they were."""


@dataclass(frozen=True)
class Health:
    """Health of embeddings in training: RankMe, uniformity and spread."""

    rankme: float
    """RankMe of the embeddings; larger is better."""
    uniformity: float
    """Uniformity of the embeddings; larger is better."""
    spread: float
    """Spread of the embeddings."""

    @property
    def collapsed(self) -> bool:
        """True if all images have one embedding."""
        return not self.spread >= COLLAPSED  # nan, too


def health(codes: Codes) -> Health:
    """Health of embeddings (n, d) of images in random order.

    Example:
        >>> health(torch.ones(8, 4)).collapsed, health(torch.eye(8)).collapsed
        (True, False)
    """
    units = normalize(codes.double(), dim=1)
    (rank, _, _), _ = rankme(codes.double())
    spread = float(units.std(dim=0, correction=0).mean()) * units.shape[1] ** 0.5
    return Health(rank, -float(potentials(points(units)).mean().log()), spread)


def lost(measured: Mapping[str, float]) -> bool:
    """True if embeddings no longer agree with the original ones, as far as measured.

    They point elsewhere, or a relative distance above 1 puts them farther from the original ones than the mean
    embedding is.

    Example:
        >>> lost({"agreement": 0.3, "relative_distance": 0.9}), lost({"agreement": 0.9, "relative_distance": 0.4}), lost({})
        (True, False, False)
    """
    return not (measured.get("agreement", 1.0) >= LOST and measured.get("relative_distance", 0.0) <= 1)


def rank_of(measured: Mapping[str, float]) -> tuple[float, float]:
    """Order of epochs, the best last: those that keep a promised agreement by robustness, then others by agreement.

    Without a promise all epochs are equal, and the last one counts. The encoder before the first step comes first.

    Example:
        >>> kept = {"epoch": 2.0, "kept": 1.0, "shift": 0.5, "agreement_low": 0.91}
        >>> missed = {"epoch": 3.0, "kept": 0.0, "shift": 0.1, "agreement_low": 0.89}
        >>> rank_of(missed) < rank_of(kept), rank_of({"epoch": 1.0}) == rank_of({"epoch": 2.0})
        (True, True)
    """
    if "kept" not in measured:
        return 0.0, 0.0
    if not measured["epoch"]:
        return -1.0, 0.0
    return (1.0, -measured["shift"]) if measured["kept"] else (0.0, measured["agreement_low"])


def neighbour_accuracy(
    codes: Float[Tensor, "n d"], labels: Int[Tensor, "n"], before: Mapping[str, float]
) -> dict[str, float]:
    """Fraction of embeddings whose nearest others, by weighted vote, have the same class; of all and of each class.

    The weight of a neighbour is exp(cos / 0.1). ``semantic_fluctuation`` is the mean change of the accuracy of a class
    since the epoch before: its mean over the epochs is that of Zhong et al. 2022 (https://arxiv.org/abs/2206.05259),
    mean over classes c and epochs t of |Acc_{t+1}^c - Acc_t^c|.

    Args:
        before: Numbers of the epoch before, by name; none before the second epoch.

    Example:
        >>> codes = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1]])
        >>> neighbour_accuracy(codes, torch.tensor([0, 0, 1, 1]), {"knn_accuracy_0": 0.5, "knn_accuracy_1": 1.0})
        {'knn_accuracy': 1.0, 'knn_accuracy_0': 1.0, 'knn_accuracy_1': 1.0, 'semantic_fluctuation': 0.25}
    """
    units = normalize(codes.double(), dim=1)
    cosines, neighbours = (units @ units.T).fill_diagonal_(-torch.inf).topk(min(NEIGHBOURS, len(units) - 1))
    classes, columns = labels.unique(return_inverse=True)
    votes = torch.zeros(len(units), len(classes), dtype=units.dtype, device=units.device)
    votes.scatter_add_(1, columns[neighbours], (cosines / 0.1).exp())
    right = (votes.argmax(1) == columns).double()
    found = {"knn_accuracy": float(right.mean())}
    if len(classes) > CLASSES:
        return found
    by_class = {f"knn_accuracy_{label}": float(right[labels == label].mean()) for label in classes.tolist()}
    changes = [abs(accuracy - before[name]) for name, accuracy in by_class.items() if name in before]
    return found | by_class | ({"semantic_fluctuation": sum(changes) / len(changes)} if changes else {})


@torch.no_grad()
def eval_codes(module: nn.Module, pixels: Tensor) -> Codes:
    """Embeddings in eval mode; the mode is restored afterwards."""
    with untouched(module):
        return torch.cat([module(part) for part in pixels.split(TOGETHER)])


# The state of a training on disk: one file, written whole, read as data alone.
#
# It holds weights, queues, momentum copies, the optimiser, what adversaries prepared, the position in the data and
# the curve so far, so that a training that was killed goes on as if it had not been: on one CPU bit by bit.

FILE = CHECKPOINT


def save(folder: Path, recipe: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write a checkpoint.

    Raises:
        HoldfastError: It cannot be written; the checkpoint before it stays.
    """
    content = BytesIO()
    torch.save({ASKED: json.dumps(recipe), **state}, content)
    try:
        write_whole(folder / FILE, content.getvalue())
    except OSError as error:
        raise HoldfastError(
            f"cannot write {folder / FILE}: {error.strerror or error}; free some space and run the same command again, "
            "which goes on from the checkpoint before it"
        ) from error


def load(folder: Path, recipe: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none.

    Raises:
        HoldfastError: The checkpoint is damaged, or of a training with other settings or images.
    """
    path = folder / FILE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        before = json.loads(state.pop(ASKED))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreadable(str(path), error) from error
    except (RuntimeError, UnpicklingError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(
            str(path),
            "it is damaged or not a training checkpoint",
            fix="delete it to begin again, or choose another --out",
        ) from error
    check_same(path.parent, before, recipe)
    return dict(state)


def check_same(folder: Path, before: Mapping[str, Any], recipe: Mapping[str, Any]) -> None:
    """Check that a checkpoint is of the same training.

    Raises:
        HoldfastError: Settings differ; the sentence names them.
    """
    other = [
        f"{name} was {before.get(name, 'not there')!r} and is {recipe.get(name, 'not there')!r}"
        for name in sorted({*before, *recipe})
        if before.get(name) != recipe.get(name)
    ]
    if other:
        raise HoldfastError(
            f"{folder} holds a training with other settings ({'; '.join(other)}); restore them to go on, or choose another "
            "--out"
        )


ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals after which a checkpoint is written: Ctrl-C, a scheduler's request, a terminal that is closed."""
STOPPING = "stopping as soon as this step is done; Ctrl-C again stops at once, without a checkpoint"


@final
class Interruption:
    """Request to stop this process, made by a signal while signals were ``deferred``."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.requested, self.say = False, say

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let signals request a stop, so that a checkpoint can be written first.

        Outside the main thread no signals arrive.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        received = list[int]()

        def request(number: int, frame: FrameType | None) -> None:
            received.append(number)
            # Torchrun passes on what reached this process already, so of several none loses patience.
            if self.requested and processes() == 1:
                raise KeyboardInterrupt
            if self.say and not self.requested:
                with suppress(RuntimeError):  # the signal came while another line was being written
                    self.say(STOPPING)
            self.requested = True

        # What nohup ignores stays ignored.
        before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, request)
        try:
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
        except KeyboardInterrupt:
            if received and callable(before[received[-1]]):
                signal.raise_signal(received[-1])  # the handler then knows which it was
            raise


SAID = {
    "loss": "Mean training loss of each epoch",
    "rate": "Learning rate",
    "rankme": "RankMe of the embeddings: how many dimensions they fill",
    "uniformity": "Uniformity of the embeddings: larger is more spread out",
    "spread": "Spread of the embeddings: near 0 they have collapsed",
    "knn_accuracy": "Fraction of bank images whose nearest others show their class",
    "semantic_fluctuation": "Semantic fluctuation: mean change of a class's accuracy since the epoch before",
    "images_per_second": "Images per second",
    "agreement": "Mean cosine similarity to the embeddings of the original encoder",
    "relative_distance": "Distance to the embeddings of the original encoder, beside the spread of these",
    "neighbours_kept": "Fraction of images whose nearest other is the same as for the original encoder",
}
STYLE = (
    ":root{color-scheme:light dark;--e0:#2a8c78;--rule:#8886}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "main{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}"
    "figure{margin:0}svg{width:100%;height:auto}td{padding:.1rem .8rem .1rem 0;vertical-align:top}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#eee}}"
)


def page(card: Card) -> str:
    """Return the page as HTML that needs nothing else."""
    names = list(dict.fromkeys(name for epoch in card.curve for name in epoch if name in SAID))
    plots = "".join(
        f"<figure>{_plot(card, name)}<figcaption>{escape(SAID[name])}</figcaption></figure>" for name in names
    )
    facts = {
        "objective": card.objective,
        "images": f"{card.images.name}, {card.images.count:,}",
        "parameters": f"{card.parameters:,}",
        "epochs": str(card.epochs),
        "finished": card.finished,
        **_fluctuation(card),
        **{name: str(value) for name, value in card.recipe.items() if value not in ("none", [])},
    }
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(card.name)}</title><style>{STYLE}</style><h1>{escape(card.name)}</h1><main>{plots}</main>"
        f"<h2>How it was trained</h2><table>{rows}</table></html>\n"
    )


def _fluctuation(card: Card) -> dict[str, str]:
    """Return the mean semantic fluctuation over all epochs, if it was measured."""
    changes = [epoch["semantic_fluctuation"] for epoch in card.curve if "semantic_fluctuation" in epoch]
    return {"mean semantic fluctuation": f"{sum(changes) / len(changes):.4f}"} if changes else {}


def _plot(card: Card, name: str) -> str:
    """Return one curve as SVG, with its text as text."""
    points = [(epoch["epoch"], epoch[name]) for epoch in card.curve if isfinite(epoch.get(name, float("nan")))]
    x, y = np.array(points, float).reshape(-1, 2).T
    return draw([Line(x, y, 0)], "epoch", name.replace("_", " "), alt=SAID[name])
