"""Images that change after their digests were taken are refused when they are read again, wherever they come from."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import cloudpickle
import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.records import Claim, Findings, Series
from holdfast.core.run_settings import Observed, RunSettings
from holdfast.core.statistics.summaries import summarise
from holdfast.data import load
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.observation import Observation
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.engines.base import Engine, Local
from holdfast.run.engines.processes import Processes
from holdfast.run.engines.ranks import LEASES, Ranks
from holdfast.transforms.base import transformed
from tests import tiny
from tests.filled import fill_table
from tests.marks import rest_slow

GREY = Domain((1, 2, 2))
COUNT, EDITED = 6, 3
Pixels = np.ndarray
REFUSED = "was changed since its digest was taken"


def pixels(seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (COUNT, 2, 2), dtype=np.uint8)


def png(values: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def edited() -> Pixels:
    values = pixels()
    values[EDITED] = 255 - values[EDITED]
    return values


def folder(root: Path, values: Pixels) -> str:
    (root / "photos").mkdir(exist_ok=True)
    for row, image in enumerate(values):
        (root / "photos" / f"{row}.png").write_bytes(png(image))
    return str(root / "photos")


def tar(root: Path, values: Pixels) -> str:
    with tarfile.open(root / "shard.tar", "w") as opened:
        for row, image in enumerate(values):
            content = png(image).ljust(200, b"\0")  # so that members stay where they were
            member = tarfile.TarInfo(f"{row}.png")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return str(root / "shard.tar")


def overwrite(path: Path, content: bytes) -> None:
    """Change a file in place, as a map sees it."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(content)


def npy(root: Path, values: Pixels) -> str:
    file = io.BytesIO()
    np.save(file, values)
    overwrite(root / "x.npy", file.getvalue())
    return str(root / "x.npy")


def safetensors(root: Path, values: Pixels) -> str:
    save_file({"images": values}, root / "new.safetensors")
    overwrite(root / "x.safetensors", (root / "new.safetensors").read_bytes())
    return str(root / "x.safetensors")


def distant(root: Path, values: Pixels) -> str:
    for row, image in enumerate(values):
        fsspec.filesystem("memory").pipe_file(f"/{root.name}/{row}.png", png(image))
    return f"memory://{root.name}"


def distant_npy(root: Path, values: Pixels) -> str:
    file = io.BytesIO()
    np.save(file, values)
    fsspec.filesystem("memory").pipe_file(f"/{root.name}/x.npy", file.getvalue())
    return f"memory://{root.name}/x.npy"


Write = Callable[[Path, Pixels], str]
every_source = pytest.mark.parametrize("write", [folder, tar, npy, safetensors, distant, distant_npy])


@every_source
def test_an_image_edited_after_its_digest_was_taken_is_refused(write: Write, tmp_path: Path) -> None:
    images = load(write(tmp_path, pixels()), GREY)
    assert len(images) == COUNT
    assert images.fingerprint
    before = images.pixels(range(COUNT))
    write(tmp_path, edited())
    others = [row for row in range(COUNT) if row != EDITED]
    assert torch.equal(images.pixels(others), before[others])
    with pytest.raises(HoldfastError, match=REFUSED) as refused:
        images.pixels(range(COUNT))
    assert images.ids[EDITED] in str(refused.value)
    with pytest.raises(HoldfastError, match=REFUSED):
        images[[EDITED]].pixels([0])
    with pytest.raises(HoldfastError, match=REFUSED):
        transformed(images, "gamma:2").pixels([EDITED])
    again = load(write(tmp_path, edited()), GREY)
    assert again.fingerprint != images.fingerprint
    assert not torch.equal(again.pixels(range(COUNT)), before), "vacuous edit"


@pytest.mark.parametrize("write", [folder, tar])
def test_a_worker_refuses_it_too(write: Write, tmp_path: Path) -> None:
    images = load(write(tmp_path, pixels()), GREY)
    assert images.fingerprint
    there = pickle.loads(cloudpickle.dumps(images))
    assert there.pixels([EDITED]).shape == (1, *GREY.shape)
    write(tmp_path, edited())
    with pytest.raises(HoldfastError, match=REFUSED):
        there.pixels([EDITED])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_a_tensor_changed_in_place_is_refused(dtype: torch.dtype) -> None:
    values = (torch.from_numpy(pixels())[:, None] / (1 if dtype == torch.uint8 else 255)).to(dtype)
    images = Images(values)
    part = images[[EDITED, 0]]
    assert images.fingerprint
    assert part.fingerprint
    images.pixels(range(COUNT))
    values[EDITED] = 1 - values[EDITED]
    images.pixels([0, 1, 2])
    for changed, row in ((images, EDITED), (part, 0)):
        with pytest.raises(HoldfastError, match=f"image {EDITED} in memory {REFUSED}"):
            changed.pixels([row])
    assert Images(values).pixels([EDITED]).shape == (1, 1, 2, 2)


@final
@dataclass(frozen=True)
class Edited(Observation):
    """Sums of pixels; ``file`` gets other pixels just before they are read."""

    file: str
    name = "edited"
    version = 1

    def rows(self, population: Population) -> list[int]:
        return list(range(len(population.images)))

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        if self.file:
            Path(self.file).write_bytes(png(edited()[EDITED]))
        return {"sum": population.pixels(rows).flatten(1).sum(1)}


@final
@dataclass(frozen=True)
class Sum(Evaluation):
    """The mean sum of an image's pixels."""

    file: str = ""
    name = "sum"
    version = 1
    title = "Sum"
    meaning = "A number. Nothing more."
    headline = ("sum",)

    def observation(self) -> Edited:
        return Edited(self.file)

    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        values = tuple(observed["sum"].tolist())
        series = Series(quantity="sum", values=values, unit="1", claim=Claim.ESTIMATE, of="sum")
        return Findings(ids=population.images.ids, series=(series,), estimates=(summarise(series, "mean", "neither"),))


@pytest.mark.parametrize("where", rest_slow(["here", "ranks", "processes"], fast=2))
def test_nothing_of_a_changed_image_is_kept(where: str, tmp_path: Path) -> None:
    reference, store = folder(tmp_path, pixels()), Store(tmp_path / "run")
    engines: dict[str, Callable[[], Engine]] = {
        "here": Local,
        "processes": lambda: Processes(1),
        "ranks": lambda: Ranks(0, 1, store.folder / LEASES),
    }

    def measured(evaluation: Sum) -> tuple[int, list[str]]:
        images = load(reference, GREY)
        made = fill_table([tiny.encoder()], lambda _: images, [evaluation], RunSettings(), store, engines[where]())
        return len(made[0]), [failure.reason for failure in made[1]]

    count, reasons = measured(Sum(os.path.join(reference, f"{EDITED}.png")))
    assert count == 0
    assert len(reasons) == 1
    assert f"image '{EDITED}.png' {REFUSED}" in reasons[0]
    assert not list(store.folder.glob("results/*"))
    kept = [path.read_bytes() for path in store.folder.glob("shards/edited-*/*")]
    assert all(b".png" in shard and f"{EDITED}.png".encode() not in shard for shard in kept), "of other images alone"
    assert measured(Sum()) == (1, []), "the images as they are now are measured as usual"
