"""What each stored form of embeddings costs on a real network: EfficientNet-Lite0 at 128 pixels.

    python -m benchmarks.stored_forms PHOTOS --radii 8

PHOTOS is a folder of crops named ``photograph_number.png``. Ranges, means and the codebook are fitted to mirrored and
cropped copies of the same crops. The form ``pq`` needs faiss and is left out without it.
"""

from __future__ import annotations

import argparse
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from examples.real_encoder import network
from torch import nn

import holdfast as hf

SIDE, CUT = 128, 12
PARTS = 160


def main() -> None:
    """Compare the encoder with each of its stored forms, a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--radii", type=int, default=0, help="images whose attack radius is measured; 0: none")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    encoder = network("lite0", SIDE)
    images = hf.load_images(f"{asked.photos}?groups=prefix", encoder)
    with TemporaryDirectory() as folder:
        forms = written_forms(encoder, images.pixels(range(len(images))), Path(folder))
        print(f"{len(images)} images; attack radii in 1/255, medians with 95% intervals")
        for name, form in forms.items():
            print(line(name, hf.parity(encoder, [f"?stored={form}"], images, radii=asked.radii)), flush=True)


def written_forms(encoder: hf.Encoder, pixels: torch.Tensor, folder: Path) -> dict[str, str]:
    """Texts of the forms by name; what they are fitted to is written to ``folder``."""
    cut = pixels[:, :, CUT // 2 : -CUT // 2, CUT // 2 : -CUT // 2]
    copies = [pixels.flip(3), cut, pixels[:, :, :-CUT, :-CUT], pixels[:, :, CUT:, CUT:]]
    views = [nn.functional.interpolate(copy, SIDE, mode="bilinear").clamp(0, 1) for copy in copies]
    codes = torch.cat([encoder(part) for view in views for part in view.split(16)]).numpy()
    np.save(folder / "copies.npy", codes)
    fitted = f"calibration=embeddings:{folder / 'copies.npy'}"
    forms = {
        "float16": "float16",
        "int8, ranges": f"int8:{fitted}",
        "float32:first=320": "float32:first=320",
        "float32:first=64": "float32:first=64",
        "int8, ranges, first=320": f"int8:{fitted},first=320",
        "binary, threshold 0": "binary",
        "binary, mean as threshold": f"binary:{fitted}",
    }
    try:
        faiss: Any = import_module("faiss")
    except ImportError:
        return forms
    index = faiss.IndexPQ(codes.shape[1], PARTS, 8)
    index.train(codes)
    faiss.write_index(index, str(folder / "pq.faiss"))
    return {**forms, f"pq, {PARTS} parts": f"pq:{folder / 'pq.faiss'}"}


def line(name: str, parity: hf.Parity) -> str:
    """One line: the form, neighbours kept and the attack radii of both sides."""
    parts = [f"{name:26}"]
    for result in parity.results:
        for estimate in result.estimates:
            if estimate.quantity in ("neighbours_kept", "attack_radius"):
                times = 255 if estimate.quantity == "attack_radius" else 1
                value, low, high = (times * each for each in (estimate.value, estimate.low, estimate.high))
                parts.append(f"{result.encoder.name} {estimate.quantity} {value:.3f} [{low:.3f}, {high:.3f}]")
    return "  ".join(parts)


if __name__ == "__main__":
    main()
