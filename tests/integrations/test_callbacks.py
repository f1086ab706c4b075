"""The callbacks log what a monitor measures, and the weights of a training are the same with and without them."""

from __future__ import annotations

import sys
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.inputs import declare_missing_operators
from tests.facts import refused
from tests.samples import digits

declare_missing_operators()
lightning = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
MEASURED: dict[str, Any] = {"settings": {"attack-radius": {"samples": 8}}, "share": inf}


class Contrast(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A small contrastive training, of a backbone with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.1))
        self.head = nn.Linear(16, 8)

    def training_step(self, batch: Any, index: int) -> Tensor:
        (pixels,) = batch
        first, second = (self.head(self.backbone(pixels + 0.1 * torch.randn_like(pixels))) for _ in range(2))
        loss = (first - second).square().mean() - first.var()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def fitted(folder: Path, *callbacks: Any, kind: type[Any] = Contrast) -> tuple[Any, dict[str, Tensor]]:
    """The trainer and the weights after two epochs."""
    lightning.seed_everything(0, verbose=False)
    module = kind()
    loader = DataLoader(TensorDataset(digits(40).pixels(range(40))), batch_size=20, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=lightning.loggers.CSVLogger(folder),
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, loader)
    return trainer, module.state_dict()


def test_lightning_logs_the_numbers_and_leaves_training_alone(tmp_path: Path) -> None:
    from holdfast.integrations.lightning import Robustness

    _, alone = fitted(tmp_path / "alone")
    callback = Robustness(digits(20), **MEASURED)
    trainer, watched = fitted(tmp_path / "watched", callback)
    torch.testing.assert_close(watched, alone, rtol=1e-4, atol=1e-5)
    assert {"holdfast/attack_radius", "holdfast/rankme", "holdfast/neighbours_kept.low"} <= set(
        trainer.callback_metrics
    )
    table = Path(trainer.logger.log_dir) / "metrics.csv"
    head, *rows = [line.split(",") for line in table.read_text().splitlines()]
    logged = [row[head.index("holdfast/rankme")] for row in rows]
    assert len([number for number in logged if number]) == 3, "before training and after each epoch"


@pytest.mark.slow
def test_simclr_of_lightlys_parts_is_watched_and_has_the_same_weights(tmp_path: Path) -> None:
    resnet18 = pytest.importorskip("torchvision").models.resnet18
    modules, losses = pytest.importorskip("lightly.models.modules"), pytest.importorskip("lightly.loss")
    from holdfast.integrations.lightning import Robustness

    class SimCLR(Contrast):
        """Built as lightly's documentation builds it."""

        def __init__(self) -> None:
            super().__init__()
            inner = nn.Sequential(*list(resnet18().children())[:-1], nn.Flatten())
            self.backbone = nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(1, 3, 1), *inner)
            self.head = modules.SimCLRProjectionHead(512, 64, 16)
            self.loss = losses.NTXentLoss()

        def training_step(self, batch: Any, index: int) -> Tensor:
            (pixels,) = batch
            views = (self.head(self.backbone(pixels + 0.1 * torch.randn_like(pixels))) for _ in range(2))
            return self.loss(*views)

    _, alone = fitted(tmp_path / "alone", kind=SimCLR)
    trainer, watched = fitted(tmp_path / "watched", Robustness(digits(20), **MEASURED), kind=SimCLR)
    assert all(torch.equal(watched[name], weight) for name, weight in alone.items())
    assert {"holdfast/attack_radius", "holdfast/rankme"} <= set(trainer.callback_metrics)


def test_lightning_says_which_part_it_cannot_find(tmp_path: Path) -> None:
    from holdfast.integrations.lightning import Robustness

    module = Contrast()
    del module.backbone
    callback = Robustness(digits(20), only="geometry")
    with refused(HoldfastError, "Contrast", "backbone"):
        callback.encoder(module)


@pytest.mark.slow
def test_transformers_logs_the_numbers_and_leaves_training_alone(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate")
    from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

    from holdfast.integrations.huggingface import Robustness

    pixels = digits(24).pixels(range(24))
    rows = [{"pixel_values": image, "labels": row % 2} for row, image in enumerate(pixels)]
    tiny: dict[str, Any] = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_channels": 1,
    }

    def trained(watch: bool) -> tuple[Any, dict[str, Tensor]]:
        set_seed(0)
        model = ViTForImageClassification(ViTConfig(hidden_size=8, image_size=8, patch_size=4, **tiny))
        arguments = TrainingArguments(
            str(tmp_path), num_train_epochs=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        if watch:
            trainer.add_callback(Robustness(trainer, digits(20), **MEASURED))
        trainer.train()
        return trainer, model.state_dict()

    _, alone = trained(False)
    trainer, watched = trained(True)
    torch.testing.assert_close(watched, alone, rtol=1e-4, atol=1e-5)
    assert len([entry for entry in trainer.state.log_history if "holdfast/attack_radius" in entry]) == 3


@pytest.mark.parametrize(("module", "package"), [("lightning", "pytorch_lightning"), ("huggingface", "transformers")])
def test_what_is_not_installed_is_said_in_a_sentence(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, "lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"holdfast.integrations.{module}", raising=False)
    with pytest.raises((HoldfastError, ImportError), match="install it with"):
        import_module(f"holdfast.integrations.{module}")
