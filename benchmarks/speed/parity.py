"""What parity costs beyond the two clean passes that it cannot do without.

    python -m benchmarks.speed.parity --network lite0 --photos FOLDER --images 1000
    python -m benchmarks.speed.parity --network builtin --images 1000

Processor seconds of ``holdfast.parity`` over those of two plain passes: images read as parity reads them, and encoded by the
network as it is arranged for speed, in batches as large. Plain passes are made before and after each call. What is imported
and arranged once in a process is done before, on a few images. Candidates are chosen by what parity has to do about them:

- *rounding*: the weights but for their last digits; nothing is to be explained. (The very same weights are encoded once.)
- *other weights*: noise on all weights; all normalisations and channel orders are tried, in vain.
- *other weights, other resizing*: and the resizing of the reference with each of them. The most that can happen.
- *file*: codes of the other resizing in a file; usual resizings of the reference are tried. One pass is made, and so it is
  compared with one.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

import holdfast as hf
from benchmarks.measure import busy
from holdfast.core.geometry import Geometry, Interpolation
from holdfast.core.noise import Noise
from holdfast.core.optimised import codes_of

BATCH, FEW = 256, 40
ENCODERS = {"lite0": "python:examples.real_encoder:lite0", "builtin": "builtin:digits-contrastive"}
SIDE = {"lite0": 224, "builtin": 8}
"""Of the inputs."""
FILES = {"lite0": 256, "builtin": 12}
"""Side of the pictures that are written."""


def main() -> None:
    """Print the ratio of every candidate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SIDE, default="builtin")
    parser.add_argument("--photos", type=Path, help="photographs, of which the pictures are parts")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--candidates", nargs="+", help="only these")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory(prefix="holdfast-") as folder:
        pictures = written(Path(folder) / "pictures", asked.network, asked.photos, asked.images)
        reference = network(asked.network)
        for name, candidate in candidates(reference, pictures):
            if asked.candidates is None or name in asked.candidates:
                print(
                    f"{asked.network}, {asked.images} images, {name}: {measured(reference, candidate, pictures)}",
                    flush=True,
                )


def network(name: str) -> hf.Encoder:
    """Return the reference, which resizes the pictures."""
    loaded = hf.load_encoder(ENCODERS[name])
    loaded.geometry = Geometry(SIDE[name], (SIDE[name], SIDE[name]), "bicubic")
    return loaded


def candidates(reference: hf.Encoder, pictures: Path) -> Iterator[tuple[str, hf.Encoder | Path]]:
    """Yield what is compared with the reference."""
    yield "rounding", like(reference, "rounding", noise=1e-6)
    yield "other weights", like(reference, "other weights", noise=0.3)
    other = like(reference, "other weights, other resizing", noise=0.3, interpolation="bilinear")
    yield other.name, other
    images = hf.load_images(str(pictures), other)
    file = pictures.parent / "codes.npz"
    np.savez(file, codes=torch.cat([*passed(other, images)]).numpy(), ids=images.ids)
    yield "file", file


def like(reference: hf.Encoder, name: str, noise: float = 0.0, interpolation: Interpolation = "bicubic") -> hf.Encoder:
    """Return the reference under another name, with noise on its weights, resizing otherwise."""
    module = deepcopy(reference.module)
    for position, weight in enumerate(module.parameters()):
        drawn = Noise.of(position, [name]).normal((weight.numel(),))[0].reshape(weight.shape)
        weight.data += noise * float(weight.data.std(correction=0)) * drawn
    other = hf.Encoder(module, name, reference.domain)
    assert isinstance(reference.geometry, Geometry)
    other.geometry = replace(reference.geometry, interpolation=interpolation)
    return other


def measured(reference: hf.Encoder, candidate: hf.Encoder | Path, pictures: Path) -> str:
    """Return the ratio of a call of parity to the plain passes around it, and the seconds of both."""
    encoders = [reference, *([candidate] if isinstance(candidate, hf.Encoder) else [])]

    def plain() -> None:
        for encoder in encoders:
            for _ in passed(encoder, hf.load_images(str(pictures), encoder)):
                pass

    answers = list[hf.Parity]()

    def ours(limit: int | None = None) -> None:
        answers.append(hf.parity(reference, candidate, str(pictures), limit=limit, batch_size=BATCH, progress=False))

    ours(FEW)
    before, parity, after = busy(plain), busy(ours), busy(plain)
    floor = (before + after) / 2
    (verdict,) = answers[-1].verdicts.values()
    tried = [each.witness["tried"] for each in answers[-1].results[0].findings.verdicts if "tried" in each.witness]
    return (
        f"{parity / floor:.3f} of the plain passes ({parity:.2f} s; {before:.2f} and {after:.2f} s), {verdict}, "
        f"{', '.join(tried) or 'no'} preprocessings tried"
    )


@torch.no_grad()
def passed(encoder: hf.Encoder, images: hf.Images) -> Iterator[torch.Tensor]:
    """Yield the codes of a plain pass, batch by batch."""
    for start in range(0, len(images), BATCH):
        rows = range(start, min(start + BATCH, len(images)))
        yield codes_of(encoder, images.pixels(rows, torch.device("cpu"), torch.float32, encoder.domain))


def written(folder: Path, name: str, photos: Path | None, count: int) -> Path:
    """Write ``count`` different pictures: parts of photographs, or noise over coarse patches."""
    folder.mkdir()
    rng, side = np.random.default_rng(0), FILES[name]
    files = sorted(photos.iterdir()) if photos else []
    for position in range(count):
        if files:
            whole = Image.open(files[position % len(files)]).convert("RGB")
            left, top = (int(rng.integers(0, length // 8 + 1)) for length in whole.size)
            picture = whole.crop((left, top, left + whole.width * 7 // 8, top + whole.height * 7 // 8)).resize(
                (side, side)
            )
        else:
            coarse = np.kron(rng.uniform(0, 1, (3, 3)), np.ones((side // 3, side // 3)))
            picture = Image.fromarray((255 * (0.6 * coarse + 0.4 * rng.uniform(0, 1, (side, side)))).astype(np.uint8))
        picture.save(folder / f"{position:04}.png")
    return folder


if __name__ == "__main__":
    main()
