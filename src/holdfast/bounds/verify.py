"""Benchmarks of verifiers: an ONNX network and a VNN-LIB query for each instance, answered one after another.

answers.json   what the folder holds: list and settings, and every finished answer; a run that was stopped goes on from it
results.csv    network, query, answer, seconds, as in competitions of verifiers
counterexamples/NETWORK-QUERY.txt   the input of each query that is ``sat``
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from holdfast.attacks.base import Attack
from holdfast.attacks.presets import read_attack
from holdfast.bounds.methods.base import Method, read_method
from holdfast.bounds.problem import Answer, Problem, WithOne
from holdfast.bounds.queries import counterexample_text, read
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError, check_no_blanks, check_whole, existing, first_line
from holdfast.encoders import onnx
from holdfast.encoders.by_name import Options
from holdfast.measure.store import Store

__all__ = ["Answer", "answers", "verify"]

SECONDS = 60.0
"""Seconds of a query without a time in its line."""


def verify(
    instances: str | Path,
    *,
    method: str | Method = "crown",
    attack: str | Attack = "adaptive",
    neurons: int = 50_000,
    seed: int = 0,
    out: str | Path | None = None,
) -> tuple[Answer, ...]:
    """Answer each query of a benchmark of verifiers, as ``holdfast certify --vnnlib`` does.

    Args:
        instances: list of instances in the format of verification competitions (network, query, seconds), or its folder.
        method: interval, crown, lipschitz, alpha, sdp-crown, branch, semidefinite or exact; takes at most the query's
            seconds.
        attack: search for counterexamples.
        neurons: largest number of nonlinear entries; larger networks are not bounded.
        seed: of random numbers in attacks.
        out: folder for ``results.csv`` and counterexamples; by default nothing is written.

    Raises:
        HoldfastError: there is no such list.
    """
    check_no_blanks(locals())
    return tuple(answers(instances, method=method, attack=attack, neurons=neurons, seed=seed, out=out))


def answers(
    instances: str | Path, method: str | Method, attack: str | Attack, neurons: int, seed: int, out: str | Path | None
) -> Iterator[Answer]:
    """Yield the answers of ``verify`` one by one."""
    check_whole(neurons, "neurons")
    method = read_method(method) if isinstance(method, str) else method
    attack = read_attack(attack) if isinstance(attack, str) else attack
    path = Path(instances)
    path = path / "instances.csv" if path.is_dir() else path
    lines = [line for line in csv.reader(_text(existing(str(path))).splitlines()) if line]
    if not lines or any(len(line) not in (2, 3) for line in lines):
        raise HoldfastError(f"{path} is no list of instances; each line names a network, a query and seconds")
    asked = {"instances": lines, "method": str(method), "attack": str(attack), "neurons": neurons, "seed": seed}
    folder = _Folder.of(Path(out), asked) if out is not None else None
    loaded = cache(lambda network: onnx.load(str(_packed(path.parent / network)), Options()))
    for network, query, *seconds in lines:
        began, digest = time.monotonic(), _digest(path.parent, network, query, seconds)
        if folder and (known := folder.finished.get(digest)):
            yield known
            continue
        lasting = True
        try:
            text = _text(_packed(path.parent / query))
            encoder: Encoder = loaded(network)
            module = WithOne(encoder.module).eval()
            problem = Problem(
                module, Path(network).stem, encoder.domain.shape, read(text, query), method, attack, neurons, seed, began,
                _seconds(seconds, path),
            )  # fmt: skip
            answer = problem.answer(network, query)
        except Exception as error:  # whatever torch says of one that cannot be read, run or bounded; others remain
            kind = "" if isinstance(error, HoldfastError | OSError) else f"{type(error).__name__}: "
            answer, lasting = Answer(network, query, "unknown", 0.0, f"{kind}{first_line(error)}"), False
        answer = replace(answer, seconds=time.monotonic() - began)
        if folder:
            folder.add(answer, digest if lasting else None)
        yield answer


def _packed(path: Path) -> Path:
    """Return ``path``, or the same compressed if there is only that."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() and not path.exists() else path


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise HoldfastError(f"{path} is no text in UTF-8 ({first_line(error)}). Copy or unpack it again.") from error


def _digest(folder: Path, *line: Any) -> str:
    """Return a hash of a line and of the existing files that it names."""
    files = [_packed(folder / name) for name in line[:2]]
    contents = [file.read_bytes() if file.is_file() else b"" for file in files]
    digests = [hashlib.sha256(each).digest() for each in contents]
    return hashlib.sha256(b"\0".join([repr(line).encode(), *digests])).hexdigest()


def _seconds(cells: list[str], path: Path) -> float:
    try:
        return float(cells[0]) if cells else SECONDS
    except ValueError as error:
        raise HoldfastError(f"{path} gives a query {cells[0]!r} seconds; expected a number") from error


@dataclass
class _Folder:
    """Stored answers of a benchmark, and those among them that need no new computation."""

    store: Store
    asked: dict[str, Any]
    finished: dict[str, Answer]
    """Answers by the hash of the query."""
    answers: list[Answer]

    @classmethod
    def of(cls, path: Path, asked: dict[str, Any]) -> _Folder:
        """Return the folder at ``path``, with the answers of an earlier run of the same list and settings.

        Raises:
            HoldfastError: it holds answers to another list, or with other settings.
        """
        file, finished = path / "answers.json", dict[str, Answer]()
        if file.exists():
            try:
                held = json.loads(file.read_text("utf-8"))
                same = held["asked"] == asked
                finished = {entry.pop("digest"): _answer(entry) for entry in held["finished"]} if same else {}
            except (ValueError, KeyError, TypeError) as error:
                raise HoldfastError(f"{file} is damaged ({first_line(error)}); name another folder as out") from error
        if (path / "results.csv").exists() and not (file.exists() and same):
            raise HoldfastError(f"{path} holds answers to another list or settings; name another folder as out")
        return cls(Store(path), asked, finished, list(finished.values()))

    def add(self, answer: Answer, digest: str | None) -> None:
        """Write all answers, ``answer`` being the last; without a digest it is computed again next time."""
        self.answers.append(answer)
        if digest is not None:
            self.finished[digest] = answer
        if answer.counterexample is not None:
            text = counterexample_text(answer.counterexample, dict(enumerate(answer.outputs)))
            name = f"{Path(answer.network).stem}-{Path(answer.query).stem}"
            self.store.write_file(f"counterexamples/{name}.txt", text.encode())
        entries = [{"digest": digest, **_entry(known)} for digest, known in self.finished.items()]
        content = json.dumps({"asked": self.asked, "finished": entries}, indent=1)
        self.store.write_file("answers.json", content.encode())
        lines = [f"{each.network},{each.query},{each.answer},{each.seconds:.3f}\n" for each in self.answers]
        self.store.write_file("results.csv", "".join(lines).encode())


def _entry(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON holds it; float64 holds each float32."""
    point = answer.counterexample
    kept = None if point is None else {"float32": point.dtype == torch.float32, "values": point.tolist()}
    return {**asdict(replace(answer, counterexample=None)), "counterexample": kept}


def _answer(entry: dict[str, Any]) -> Answer:
    point = entry["counterexample"]
    if point is not None:
        point = torch.tensor(point["values"], dtype=torch.float32 if point["float32"] else torch.float64)
    return Answer(**{**entry, "counterexample": point, "outputs": tuple(entry["outputs"])})
