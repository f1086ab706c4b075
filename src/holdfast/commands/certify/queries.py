"""The questions of a certify run as files that other verifiers read: ONNX networks and VNN-LIB queries.

vnnlib/instances.csv    one query a line, as in competitions of verifiers: network, query, seconds
vnnlib/expected.csv     the same queries with our answer, and the counterexample that it rests on
vnnlib/onnx/NAME.onnx   the network around one image: its outputs are ``W f``, one for each negative
vnnlib/vnnlib/NAME-against-K.vnnlib   the ball, and the output that would have to be at most zero
vnnlib/counterexamples/NAME-against-K.txt   an input of the ball whose output is

Networks are in float32, so that ``W``, which is computed in float64, is rounded. What is expected is the answer to the
query as it is written: a bound counts once it exceeds what the rounding of ``W`` can change, a counterexample if it is a
float32 input inside the box whose rounded ``W f`` is negative in real numbers, and in float32 for any order of summation.
``unsat`` is of the network's real numbers: what executes it in float32 rounds, and may compute an output at or below zero
where the least real one is above zero by less than that.
"""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast.bounds.methods.interval import intermediate_bounds
from holdfast.bounds.network.calls import precision_of
from holdfast.bounds.regions import region
from holdfast.bounds.relaxations.rules import Box
from holdfast.commands.certify.counterexamples import UNCERTAIN, codes_in_float32, highest
from holdfast.commands.certify.files import file_stem
from holdfast.commands.certify.observation import Certificates
from holdfast.commands.certify.vnnlib import Disjunct, decimal, write
from holdfast.core.balls import Ball, Linf
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.run_settings import Observed
from holdfast.encoders.loading.reference import first_line, require
from holdfast.evaluations.certified.pairwise.pairs import Pairs
from holdfast.protocol.population import Population
from holdfast.store.store import Store

FOLDER = "vnnlib"
SECONDS = 60
"""For each query, in the list of instances."""


class Specified(nn.Module):
    """A network whose outputs are linear functions of the code of ``encoder``: ``specifications @ f(x)``."""

    def __init__(self, encoder: nn.Module, specifications: Float[Tensor, "k d"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.specifications = nn.Parameter(specifications, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.encoder(x), self.specifications)


def check_queries(export: str | None, ball: Ball, smoothing: bool, out: str | Path | None) -> None:
    """Raise unless the queries of such a run can be exported, or nobody asked for it.

    Example:
        >>> from holdfast.core.balls import L2
        >>> check_queries("vnnlib", L2(0.5), False, "out")
        Traceback (most recent call last):
        holdfast.core.errors.HoldfastError: VNN-LIB has boxes only, so that queries in l2:0.5 cannot be exported; ...
    """
    if export is None:
        return
    if export != "vnnlib":
        raise HoldfastError(f"queries are exported as vnnlib, got {export!r}")
    if smoothing:
        raise HoldfastError(
            "smoothing asks nothing of single inputs, so that there are no queries to export; use crown"
        )
    if not isinstance(ball, Linf):
        raise HoldfastError(f"VNN-LIB has boxes only, so that queries in {ball} cannot be exported; use a linf ball")
    if out is None:
        raise HoldfastError("exported queries are files; name a folder as out")


def require_queries(encoder: Encoder) -> None:
    """Raise unless ``encoder`` can be written as the ONNX networks that other verifiers read."""
    require("onnxscript", "onnx")
    if precision_of(encoder) != torch.float32:
        raise HoldfastError(
            f"{encoder.name} has weights in {precision_of(encoder)}, and exported networks are in float32; convert it"
        )


def write_queries(
    population: Population, observation: Certificates, rows: Sequence[int], observed: Observed, store: Store
) -> Path:
    """Write every query of the images at ``rows``, of which ``observed`` holds the answers, and return their list.

    Pairs whose two codes point in one direction ask nothing, and have no query.

    Raises:
        HoldfastError: the network cannot be exported.
        StoreError: the folder cannot be written.
    """
    instances, expected = list[tuple[object, ...]](), [("network", "query", "answer", "counterexample")]
    for k, row in enumerate(rows):
        pair_attack = observation.pairs.pair_attack(population, [row])
        pairs, stem = pair_attack.pairs, file_stem(population.images.ids[row])
        box = ball_box(pairs, observation.pairs.ball)
        points = None
        if bool((observed["attacked"][k] < 0).any()):
            points = inside(observation.attack(pair_attack).points, box)
        network, answers = f"onnx/{stem}.onnx", _answers(pairs, observed["bound"][k], points, box)
        store.write_file(f"{FOLDER}/{network}", onnx_network(population.encoder, pairs.specifications[0]))
        for j, answer in enumerate(answers):
            if not bool(pairs.defined[0, j]):
                continue
            query, counterexample = f"vnnlib/{stem}-against-{j}.vnnlib", ""
            store.write_file(f"{FOLDER}/{query}", _query(pairs, j, box, answer).encode())
            if answer.answer == "sat":
                assert points is not None
                counterexample = f"counterexamples/{stem}-against-{j}.txt"
                value = float(_values(pairs, points, torch.float64)[j])
                store.write_file(f"{FOLDER}/{counterexample}", counterexample_text(points[j], {j: value}).encode())
            instances.append((network, query, SECONDS))
            expected.append((network, query, answer.answer, counterexample))
    store.write_file(f"{FOLDER}/expected.csv", _table(expected))
    store.write_file(f"{FOLDER}/instances.csv", _table(instances))
    return store.folder / FOLDER / "instances.csv"


def ball_box(pairs: Pairs, ball: Ball) -> Box:
    """Return the box of inputs around a single anchor, as bounds and queries have it."""
    eps = torch.full_like(pairs.specifications[:, 0, 0], ball.radius)
    low, high = region(pairs.anchors, Linf, eps, pairs.encoder.domain).box
    return Box(low[:, 0], high[:, 0])


def onnx_network(encoder: Encoder, specifications: Float[Tensor, "k d"]) -> bytes:
    """Return the ONNX file of ``specifications @ f(x)`` for a single image, in float32.

    Raises:
        HoldfastError: the network cannot be exported.
    """
    module = Specified(encoder.to("cpu", torch.float32).module, specifications.cpu().float()).eval()
    example = encoder.domain.clip(torch.zeros(1, *encoder.domain.shape))
    names: dict[str, Any] = {"input_names": ["X"], "output_names": ["Y"]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own exporter
            program = torch.onnx.export(module, (example,), dynamo=True, verbose=False, **names)
    except Exception as error:  # whatever the exporter raises is what the reader must hear
        reason = str(error).strip().partition("\n")[0]
        raise HoldfastError(
            f"{encoder.name} cannot be exported to ONNX ({type(error).__name__}: {reason}); leave out --export"
        ) from error
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def counterexample_text(point: Float[Tensor, "*pixels"], outputs: dict[int, float]) -> str:
    """Return a counterexample in the form of competitions: the answer, then every input and the outputs known."""
    values = [f"(X_{i} {decimal(value)})" for i, value in enumerate(point.flatten().tolist())]
    values += [f"(Y_{i} {decimal(value)})" for i, value in outputs.items()]
    return "sat\n(" + "\n ".join(values) + ")\n"


def _rounded(pairs: Pairs) -> Float[Tensor, "k d"]:
    """Return the specifications of a single anchor as the exported network has them."""
    return pairs.specifications[0].float().double()


def _values(pairs: Pairs, points: Float[Tensor, "k *pixels"], dtype: torch.dtype) -> Float[Tensor, "k"]:
    """Return what the exported network computes of each pair's own point in ``dtype``, one input at a time."""
    encoder = pairs.encoder.to("cpu", dtype)
    network = Specified(encoder.module, _rounded(pairs).to("cpu", dtype)).eval()
    with torch.no_grad():
        outputs = [network(point[None].to("cpu", dtype))[0, j] for j, point in enumerate(points)]
    return torch.stack(outputs).double()


class Expected(NamedTuple):
    """What is known of a query: unsat, sat or unknown, and why it is not more."""

    answer: str
    note: str = ""


def _answers(
    pairs: Pairs, bounds: Float[Tensor, "k"], points: Float[Tensor, "k *pixels"] | None, box: Box
) -> list[Expected]:
    """Return for each pair of a single anchor what is known of its query."""
    around = region(pairs.anchors, Linf, torch.zeros_like(pairs.specifications[:, 0, 0]), pairs.encoder.domain)
    around = type(around)(around.centre, box.lower[:, None], box.upper[:, None], around.eps, Linf)
    low, high = intermediate_bounds(pairs.graph, around)[-1]
    change = (pairs.specifications[0] - _rounded(pairs)).abs() @ torch.maximum(low.abs(), high.abs())[0, 0]
    proved = (bounds.to(change) - change > 0).tolist()
    refuted = _refuted(pairs, points, box) if points is not None else [Expected("unknown")] * len(proved)
    return [
        other if not unsat else Expected("unsat" if other.answer == "unknown" else "unknown")
        for unsat, other in zip(proved, refuted, strict=True)
    ]


def _refuted(pairs: Pairs, points: Float[Tensor, "k *pixels"], box: Box) -> list[Expected]:
    """Return which pairs their own point certainly refutes, and of the others which it refutes as computed here."""
    inside_box = ((points >= box.lower) & (points <= box.upper)).flatten(1).all(1).cpu()  # a box may hold no float32
    here = torch.maximum(*(_values(pairs, points, dtype) for dtype in (torch.float32, torch.float64))) < 0
    try:
        codes = codes_in_float32(pairs.encoder, points)
        certain = highest(_rounded(pairs)[:, None].cpu(), codes, torch.float32)[:, 0] < 0
        note = UNCERTAIN
    except HoldfastError as error:
        certain, note = torch.zeros_like(here), f"{UNCERTAIN} ({first_line(error)})"
    return [
        Expected("sat") if sure else Expected("unknown", note if likely else "")
        for sure, likely in zip((certain & here & inside_box).tolist(), (here & inside_box).tolist(), strict=True)
    ]


def inside(points: Float[Tensor, "k *pixels"], box: Box) -> Float[Tensor, "k *pixels"]:
    """Return the float32 points of the box that are closest to ``points``, in float64."""
    clamped = torch.minimum(torch.maximum(points, box.lower), box.upper)
    rounded = clamped.float()
    up, down = torch.full_like(rounded, torch.inf), torch.full_like(rounded, -torch.inf)
    rounded = torch.where(rounded.double() < box.lower, torch.nextafter(rounded, up), rounded)
    return torch.where(rounded.double() > box.upper, torch.nextafter(rounded, down), rounded).double()


def _query(pairs: Pairs, j: int, box: Box, expected: Expected) -> str:
    """Return the query whether output ``j`` can be at most zero in the box."""
    specification = np.zeros((1, pairs.shape[1]))
    specification[0, j] = 1.0
    low, high = (end.flatten().cpu().numpy() for end in box)
    anchor, negative = pairs.ids[0][0], pairs.ids[0][1 + j]
    about = f"Y_{j} <= 0: {anchor!r} is more similar to {negative!r} than to itself"
    comments = [about, f"expected: {expected.answer}", *([expected.note] if expected.note else [])]
    return write(Disjunct(low, high, specification, np.zeros(1)), [comment.replace("\n", " ") for comment in comments])


def _table(lines: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()
