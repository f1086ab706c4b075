"""Files of ``holdfast attack``, from which anybody can check an attack against the encoder.

attack.json          settings, numbers per image, and the replay of the saved pixels
attack.safetensors   clean and attacked pixels and embeddings, exactly (``clean_levels`` where 8 bits do); ids in the header
images/NAME.png      attacked images, rounded to 256 levels (for inputs that are images)
sheet.png            the images that moved most and least: clean, attacked, change, target
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from safetensors.torch import load, save
from torch import Tensor

from holdfast.attacks.adversarial import Adversarial, AttackRecord, MovedImage, Replay
from holdfast.attacks.attacked_codes import change
from holdfast.attacks.base import within
from holdfast.attacks.presets import Preset
from holdfast.core.divergences import Cosine, L2Distance
from holdfast.core.encoder import Domain, Pixels
from holdfast.core.pictures import draw, ends, png, row
from holdfast.core.records import ImagesInfo, Picture
from holdfast.core.run_settings import Observed
from holdfast.measure.population import Population
from holdfast.measure.store import Store, provenance

PIXELS = "attack.safetensors"
SHOWN = 4
"""Images on the sheet: the number of those that moved most, and of those that moved least."""


def write_attack(
    population: Population, preset: Preset, adversarial: Adversarial, store: Store, started: datetime
) -> AttackRecord:
    """Write attacked images and their record into the folder of ``store``.

    Returns:
        The record that was written.

    Raises:
        StoreError: The folder cannot be written.
    """
    store.write_file(PIXELS, _packed(adversarial))
    pngs = _pngs(adversarial, population.encoder.domain, store)
    if pngs:
        store.write_file("sheet.png", draw(_shown(population, preset, adversarial)))
    record = _record(population, preset, adversarial, store.folder, pngs, started)
    store.write_file("attack.json", record.model_dump_json(indent=1).encode())
    return record


def _packed(adversarial: Adversarial) -> bytes:
    levels = _levels(adversarial.clean)
    tensors = {
        **({"clean": adversarial.clean} if levels is None else {"clean_levels": levels}),
        "attacked": adversarial.attacked,
        "clean_codes": adversarial.clean_codes,
        "attacked_codes": adversarial.codes,
    }
    whole = {name: values.contiguous() for name, values in tensors.items()}
    return save(whole, {"ids": json.dumps(adversarial.ids)})


def _levels(pixels: Pixels) -> UInt8[Tensor, "n ..."] | None:
    """Return pixels of 8 bits as such, a quarter of their size; None if they are no fractions of 255, exactly."""
    levels = (pixels.double() * 255).round().clamp(0, 255).to(torch.uint8)
    return levels if torch.equal(levels.to(pixels.dtype) / 255, pixels) else None


def _pngs(adversarial: Adversarial, domain: Domain, store: Store) -> list[str]:
    """Write the attacked images as files and return their paths below the folder; none for inputs that are no images."""
    written = []
    views = adversarial.views
    for place, (name, pixels) in enumerate(zip(adversarial.ids, adversarial.attacked, strict=True)):
        content = png(pixels, domain) if len(pixels) in (1, 3) else None  # of other images it would hold a part
        if content is None:
            return []
        # The number tells apart ids that differ in characters no file name holds, or in their endings alone. It is the
        # image's among all, so that the files of a part keep their names when the rest follows.
        number = int(adversarial.rows[place]) * views + place % views
        plain = re.sub(r"[^\w.]+", "_", re.sub(r"\.[A-Za-z]\w*$", "", name))[-60:]
        file = f"images/{number:05d}-{plain}.png"
        store.write_file(file, b64decode(content))
        written.append(file)
    return written


def _shown(population: Population, preset: Preset, adversarial: Adversarial) -> list[Picture]:
    """Return the rows of the sheet."""
    domain = population.encoder.domain
    moved = L2Distance()(adversarial.codes, adversarial.clean_codes)
    rows = []
    for place in ends(moved.tolist(), SHOWN):
        clean, attacked = adversarial.clean[place], adversarial.attacked[place]
        parts = {"clean": clean, "attacked": attacked, "change": change(clean, attacked, domain, preset.ball.radius)}
        if adversarial.targets:
            parts["target"] = population.pixels([adversarial.targets[place]])[0]
        rows.append(row(f"{adversarial.ids[place]}\nmoved by {moved[place]:.3g} (l2)", parts, domain))
    return [shown for shown in rows if shown is not None]


def _record(
    population: Population, preset: Preset, adversarial: Adversarial, folder: Path, pngs: list[str], started: datetime
) -> AttackRecord:
    images, run = population.images, population.run
    return AttackRecord(
        encoder=population.encoder_info,
        images=ImagesInfo(name=images.name, fingerprint=images.fingerprint, count=len(images)),
        settings={
            "objective": str(preset.objective),
            "attack": str(preset.attack),
            "ball": str(preset.ball),
            "source": preset.source,
            "seed": str(run.seed),
            "precision": run.precision,
        },
        batch_sizes=None if preset.objective.per_sample else adversarial.batches,
        clean_distance=_clean_distance(population),
        moved=_moved(population, preset, adversarial, folder, pngs),
        missing=adversarial.missing,
        replay=replay(population, preset, folder / PIXELS),
        provenance=provenance(run, started),
    )


def _clean_distance(population: Population) -> float:
    if population.lonely:
        return nan
    codes = population.codes
    return float(L2Distance()(codes, codes[population.partners]).median())


def _moved(
    population: Population, preset: Preset, adversarial: Adversarial, folder: Path, pngs: list[str]
) -> tuple[MovedImage, ...]:
    ids = population.images.ids
    columns: dict[str, list[Any]] = {
        "id": list(adversarial.ids),
        "target": [ids[row] for row in adversarial.targets] if adversarial.targets else [None] * len(adversarial.ids),
        "clean_gain": adversarial.clean_gain.tolist(),
        "gain": adversarial.gain.tolist(),
        "norm": preset.ball.norm(adversarial.attacked - adversarial.clean).tolist(),
        "l2": L2Distance()(adversarial.codes, adversarial.clean_codes).tolist(),
        "cosine": Cosine()(adversarial.codes, adversarial.clean_codes).tolist(),
        "png": list(pngs) or [None] * len(adversarial.ids),
        "l2_of_png": [None] * len(adversarial.ids),
    }
    if pngs:
        columns |= {
            name: values.tolist() for name, values in _rounded(population, preset, adversarial, folder, pngs).items()
        }
    return tuple(MovedImage(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _rounded(
    population: Population, preset: Preset, adversarial: Adversarial, folder: Path, pngs: list[str]
) -> Observed:
    """Return what the PNG files hold of each attack: rounded to 8 bits, a small one leaves its ball or is undone."""
    domain, run = population.encoder.domain, population.run
    clean_pngs = [png(pixels, domain) for pixels in adversarial.clean]

    def work(rows: Sequence[int]) -> Observed:
        chosen = list(rows)
        read, clean = torch.stack([_read(folder / pngs[row], domain) for row in rows]), adversarial.clean[chosen]
        codes = population.encode(read.to(run.device, run.dtype)).cpu()
        unchanged = [b64decode(clean_pngs[row] or "") == (folder / pngs[row]).read_bytes() for row in rows]
        return {
            "l2_of_png": L2Distance()(codes, adversarial.clean_codes[chosen]),
            "norm_of_png": preset.ball.norm(read - clean.float()),
            "png_in_ball": within(clean.float(), read, preset.ball),
            "png_is_clean": torch.tensor(unchanged),
        }

    return run.batches(range(len(pngs)), work)


def _read(path: Path, domain: Domain) -> Float[Tensor, "channels height width"]:
    """Return the image in a PNG file as the encoder's input."""
    from PIL import Image

    levels = torch.from_numpy(np.array(Image.open(path)))
    levels = levels[None] if levels.ndim == 2 else levels.permute(2, 0, 1)
    return domain.clip(domain.low + (domain.high - domain.low) * levels.double() / 255).float()


def replay(population: Population, preset: Preset, path: Path) -> Replay:
    """Check saved pixels: range, ball and embeddings."""
    # Read as bytes, for safetensors opens no path that is not UTF-8.
    saved = load(path.read_bytes())
    attacked, codes = saved["attacked"], saved["attacked_codes"]
    clean = saved["clean"] if "clean" in saved else saved["clean_levels"].to(attacked.dtype) / 255
    domain, ball = population.encoder.domain, preset.ball
    run = population.run

    def work(rows: Sequence[int]) -> Observed:
        return {"codes": population.encode(attacked[list(rows)].to(run.device, run.dtype)).cpu()}

    again = run.batches(range(len(attacked)), work)["codes"]
    size = max(float(codes.abs().max()), torch.finfo(codes.dtype).tiny)
    difference = float((again - codes).abs().max()) / size
    return Replay(
        in_range=bool(((attacked >= domain.low) & (attacked <= domain.high)).all()),
        in_ball=bool(within(clean, attacked, ball).all()),
        largest_norm=float(ball.norm(attacked - clean).max()),
        code_difference=difference,
        same_codes=difference <= torch.finfo(codes.dtype).eps ** 0.5,
    )
