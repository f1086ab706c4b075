"""Make the built-in encoders again by the recipes of their names: ``python scripts/train_builtin.py``.

On one machine the weights come out the same to the last bit. Those that are shipped were trained by a program before these
recipes, with the same losses, rates and augmentations but other random numbers: accuracies agree to a percent or so.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import torch
from safetensors.torch import save
from score_builtin import accuracies, table

import holdfast as hf
from holdfast.encoders.builtin import NAMES, card

WEIGHTS = Path(__file__).parents[1] / "src/holdfast/encoders/weights"


def main() -> None:
    """Train and write all encoders but the untrained one, then print what they are worth."""
    torch.set_num_threads(1)
    for name in NAMES[1:]:
        encoder = hf.train(name)
        weights = save(encoder.module.state_dict())
        told = card(name) | {key: round(value, 4) for key, value in accuracies(encoder).items()}
        told |= {"weights_sha256": sha256(weights).hexdigest(), "torch": torch.__version__}
        (WEIGHTS / f"{name}.safetensors").write_bytes(weights)
        (WEIGHTS / f"{name}.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
