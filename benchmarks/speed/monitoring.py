"""What share of a training a monitor takes, and whether the training is the same with and without it.

    python -m benchmarks.speed.monitoring --photos FOLDER --share 0.05 --epochs 40

EfficientNet-Lite0 at 64 pixels with ImageNet's weights is trained on photographs in a plain loop, to give two noisy views of
one image one code and spread the codes. Printed are the share of the time that was asked for and the one that measurements
took, without the one before training; then whether all weights, statistics and moments of a training of few steps are the
same to the last bit with a measurement after every epoch and without.
"""

from __future__ import annotations

import argparse
import random
import warnings
from math import inf
from time import monotonic, process_time

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.measure import busy
from holdfast.core.encoder import Normalised
from holdfast.integrations.monitor import Monitor

BATCH, NOISE = 16, 0.1
ENCODER = "python:examples.real_encoder:small"


def main() -> None:
    """Print the shares, and what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--samples", type=int, default=64, help="images that are attacked")
    parser.add_argument("--epochs", type=int, default=40)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pixels = photographs(asked.photos)
    settings = {"attack-radius": {"samples": asked.samples}}
    shares(pixels, Monitor(hf.Images(pixels), settings=settings, share=asked.share), asked.epochs)
    few = {"attack-radius": {"samples": 4}}
    watched = trained(pixels, 3, Monitor(hf.Images(pixels), settings=few, share=inf))
    for name, monitor in (("watched", watched), ("once more without", trained(pixels, 3, None))):
        differing = [key for key, value in trained(pixels, 3, None).items() if not torch.equal(value, monitor[key])]
        print(f"{name} and alone: {len(monitor) - len(differing)} of {len(monitor)} tensors equal to the last bit")


def photographs(folder: str) -> Tensor:
    """Return all photographs at 64 pixels."""
    images = hf.load_images(folder, hf.load_encoder(ENCODER))
    return images.pixels(range(len(images)))


def network() -> nn.Sequential:
    """Return Lite0, its normalisation inside, to be trained."""
    module = hf.load_encoder(ENCODER).module
    assert isinstance(module, Normalised)
    return nn.Sequential(module).requires_grad_(True).train()


class Training:
    """A training that draws from every generator, epoch by epoch."""

    def __init__(self, pixels: Tensor) -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        self.pixels, self.module = pixels, network()
        self.optimiser = torch.optim.SGD(self.module.parameters(), lr=0.001, momentum=0.9)

    def epoch(self) -> None:
        """Give two noisy views of each image one code, and spread the codes."""
        for rows in torch.randperm(len(self.pixels)).split(BATCH):
            level = NOISE * (1 + random.random() + float(np.random.rand()))
            first, second = (self.module(view + level * torch.randn_like(view)) for view in [self.pixels[rows]] * 2)
            loss = (first - second).square().mean() - 0.1 * first.std(0).mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()


def shares(pixels: Tensor, monitor: Monitor, epochs: int) -> None:
    """Print how much of the time measurements took, by the clock and by the processor."""
    training, spent, done = Training(pixels), np.zeros(2), list[int]()
    print(f"before training: {busy(lambda: monitor.start(training.module)):.1f} processor seconds", flush=True)
    began = now()
    for epoch in range(1, epochs + 1):
        training.epoch()
        since = now()
        if monitor.after(epoch, training.module):
            done.append(epoch)
            print(f"after epoch {epoch}: {(now() - since)[1]:.1f} processor seconds", flush=True)
        spent += now() - since
    (clock, processor), (whole, whole_processor) = spent, now() - began
    print(
        f"asked for {monitor.share:.1%}, took {clock / whole:.2%} ({clock:.1f} of {whole:.0f} s), of the processor "
        f"{processor / whole_processor:.2%} ({processor:.1f} of {whole_processor:.0f} s), "
        f"measured after epochs {', '.join(map(str, done)) or 'none'} of {epochs}",
        flush=True,
    )


def now() -> np.ndarray:
    """Return the seconds of the clock and of the processor."""
    return np.array([monotonic(), process_time()])


def trained(pixels: Tensor, epochs: int, monitor: Monitor | None) -> dict[str, Tensor]:
    """Return weights, statistics and moments after so many epochs of four batches."""
    training = Training(pixels[: 4 * BATCH])
    for epoch in range(1, epochs + 1):
        training.epoch()
        if monitor is not None:
            assert monitor.after(epoch, training.module)
    moments = {f"moment {row}": state["momentum_buffer"] for row, state in enumerate(training.optimiser.state.values())}
    return training.module.state_dict() | moments | {"torch's generator": torch.get_rng_state()}


if __name__ == "__main__":
    main()
