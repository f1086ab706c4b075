"""The training loop: checks, then views, adversary, loss and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from holdfast.core.encoder import Codes, Domain, Pixels
from holdfast.core.errors import AgreementLostError, BudgetSpentError, Described, HoldfastError, OutOfRange
from holdfast.core.files import hashed
from holdfast.core.images import Images
from holdfast.core.noise import Noise
from holdfast.encoders.architectures.base import LoadedEncoder
from holdfast.training import health as checkpoints
from holdfast.training.feed import Feed
from holdfast.training.health import COLLAPSED, Interruption, eval_codes, health, lost, neighbour_accuracy, rank_of
from holdfast.training.learner import Batch, Learner, Setting
from holdfast.training.moco_checkpoint import MoCoCheckpoint
from holdfast.training.optimisers import averaged
from holdfast.training.processes import processes, rank, share_statistics, somewhere
from holdfast.training.recipe import Recipe, check_views, resized, views_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric


SEARCHED = 2000
"""Images of the bank among which neighbours are looked for after each epoch."""


def classes_of(images: Images, recipe: Recipe) -> tuple[Int[Tensor, "n"] | None, int]:
    """Labels as 0, 1, ... and the number of classes; None and 0 without labels.

    Args:
        recipe: Recipe, whose objective may need labels.

    Raises:
        HoldfastError: The objective needs labels that the images lack, or they do not suffice.
    """
    if images.labels is None:
        if recipe.objective.needs_labels:
            raise HoldfastError(
                f"{recipe.objective} learns from labels, and {images.name} has none; name a labelled source "
                "(folder:photos?labels=folders), or choose an objective without labels"
            )
        return None, 0
    values, columns = torch.as_tensor(images.labels).unique(return_inverse=True)
    if recipe.objective.needs_labels and len(values) < 2:
        raise HoldfastError(f"all images of {images.name} have one label; {recipe.objective} has nothing to tell apart")
    return columns, len(values)


def watched_bank(bank: Images | None, domain: Domain) -> tuple[Pixels, Int[Tensor, "n"]] | None:
    """Pixels and labels of a fixed part of the reference set, for neighbour accuracy.

    Args:
        bank: Reference set; None without.
    """
    if bank is None or bank.labels is None:
        return None
    order = Noise.of(0, bank.ids).fork("watched").uniform((1,))[:, 0].argsort()[:SEARCHED]
    return bank.pixels(order.tolist(), domain=domain), torch.as_tensor(bank.labels)[order]


def width_of(encoder: nn.Module, pixels: Pixels, crop_size: int | None = None) -> int:
    """Features of an embedding.

    Args:
        crop_size: Height and width of small crops; None without crops.

    Raises:
        HoldfastError: The embeddings are no vectors, or the network does not accept crops of this size.
    """
    anchor = next(encoder.parameters(), pixels)
    pixels = pixels.to(anchor.device, anchor.dtype)
    codes = eval_codes(encoder, pixels)
    if codes.ndim != 2:
        raise OutOfRange(
            "what the encoder returns",
            Described(f"shape {tuple(codes.shape)}"),
            "one vector per image",
            fix="pool inside it",
        )
    if crop_size is not None:
        try:
            fits = eval_codes(encoder, resized(pixels, crop_size)).shape == codes.shape
        except (RuntimeError, ValueError, AssertionError):  # whatever a network of one size says to another
            fits = False
        if not fits:
            raise HoldfastError(
                f"the network does not take crops of {crop_size} x {crop_size} pixels, only its own inputs of "
                f"{' x '.join(map(str, pixels.shape[-2:]))}; leave crop_size out, or take one that pools over all places, "
                "such as small-resnet"
            )
    return codes.shape[1]


def check_batch_norm(learner: nn.Module, share: int) -> None:
    """Check that batch norm never sees a single image.

    Args:
        share: Images per process and step.

    Raises:
        HoldfastError: Batch norm would take the variance of one image.
    """
    norms = [part for part in learner.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if share == 1 and any(norm.training or norm.running_var is None for norm in norms):
        raise HoldfastError("batch norm needs at least 2 images in a batch of each process, got 1; raise batch")


# The loop: views, adversary, loss, gradients, step; health after each epoch; checkpoints at least every minute.
#
# Lightning Fabric places the work: the same loop alone, as one of several processes of torchrun, on GPUs, in mixed
# precision.
# Torch's generator is seeded again for each step, so nothing random has to be kept.

STATE = "prepared", "sound_epoch", "sound_weights", "epoch", "step", "total", "seconds", "curve", "started"
"""What a checkpoint keeps beside the states of learner, optimiser and precision."""
SECONDS = 60.0
"""At least this often a checkpoint is written."""
WATCHED = 512
"""Training images whose codes are looked at after each epoch."""
LOOKED = {"cpu": 1, "cuda": 25}
"""After how many steps a loss is looked at: on a GPU each look waits for the device."""

ADVICE = "lower the learning rate, set clip, or use a wider precision"

ShowProgress = Callable[[str, float], None]
Epoch = dict[str, float]
"""What was measured in an epoch, by name."""
Watch = Callable[[nn.Module], Mapping[str, float]]
"""What else is to be measured of the encoder in training."""


class Training:
    """A training between its beginning and its end.

    Args:
        recipe: the settings.
        encoder: the module that is trained: pixels to codes, normalisation inside.
        domain: its inputs.
        images: to train on; their labels are used if the objective needs them.
        bank: labelled images whose neighbours are looked at after each epoch; training never sees them.
        fabric: launched already.
        folder: of checkpoints; None keeps none.
        identity: what identifies this training; a checkpoint of another is refused.
        after_epoch: called with the encoder and the curve after each epoch, by the first process alone.
        watch: measures the encoder before the first and after each epoch, beside its health. Where it returns an
            ``agreement`` with the original codes, training ends when that is lost.
        until: when the last step should have ended, by ``time.monotonic``.
        say: called with what a stop waits for, as soon as one is requested.
        continued: a checkpoint of MoCo that the objective goes on from.
    """

    def __init__(
        self,
        recipe: Recipe,
        encoder: nn.Module,
        domain: Domain,
        images: Images,
        bank: Images | None,
        fabric: Fabric,
        folder: Path | None,
        identity: Mapping[str, Any],
        show_progress: ShowProgress,
        after_epoch: Callable[[nn.Module, list[Epoch]], None],
        watch: Watch | None = None,
        until: float = inf,
        say: Callable[[str], None] | None = None,
        continued: MoCoCheckpoint | None = None,
    ) -> None:
        self.recipe, self.domain, self.fabric, self.folder, self.identity = recipe, domain, fabric, folder, identity
        self.show_progress, self.after_epoch, self.watch, self.until = show_progress, after_epoch, watch, until
        self.dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        augmentations = recipe.augmentations if recipe.native else ()
        self.feed = Feed(images, domain, recipe.batch, recipe.seed, fabric.device, augmentations)
        check_views(recipe, domain, self.feed.pixels([0]), self.feed.noise[:1])
        self.labels, classes = classes_of(images, recipe)
        self.bank = watched_bank(bank, domain)
        width = width_of(encoder, self.feed.pixels([0, 0]).cpu(), recipe.crop_size if recipe.objective.crops else None)
        setting = Setting(domain, width, len(images), classes, recipe.batch)
        # The learner and its copies of the encoder stay in the mode in which they are built.
        learner = bare = recipe.objective.learner(encoder.train(recipe.mode != "eval"), setting)
        if continued is not None:
            continued.fill(bare)
        if recipe.adversary is not None:
            learner = recipe.adversary.around(learner, domain, not isinstance(recipe.architecture, LoadedEncoder))
        if not any(weight.requires_grad for weight in learner.encoder.parameters()):
            raise HoldfastError("the encoder has no weights that can be trained (none takes a gradient); unfreeze some")
        check_batch_norm(learner, recipe.batch // processes())
        optimiser = recipe.optimiser.build(learner.parameters())
        self.learner: Learner = learner
        self.model, self.optimiser = fabric.setup(learner, optimiser)
        if continued is not None:
            continued.continue_momentum(bare, self.optimiser)
        # Behind the setup, which moves the encoder to its device and precision.
        self.averaged = None if recipe.ema is None else averaged(learner.encoder, recipe.ema)
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        self.watched = self.feed.pixels(
            self.feed.noise.fork("watched").uniform((1,))[:, 0].argsort()[:WATCHED].tolist()
        )
        self.epoch, self.step, self.curve = 0, 0, list[Epoch]()
        self.total, self.seconds, self.prepared = 0.0, 0.0, dict[str, Tensor]()
        self.pace = 0.0  # seconds of the last step, once there was one: each command takes one at least
        self.sound_epoch, self.sound_weights = 0, dict[str, Tensor]()
        self.interruption = Interruption(say)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> None:
        """Train to the end, or until interrupted, from the checkpoint if there is one.

        Raises:
            HoldfastError: the loss is not finite, codes collapse, or a checkpoint cannot be used.
            AgreementLostError: codes are no longer what they were, by what ``watch`` returns.
            BudgetSpentError, KeyboardInterrupt: after a checkpoint was written.
        """
        self._restore()
        if not self.curve:
            self._remember(self._health() | {"epoch": 0.0})
        self._check_agreement()
        with self.interruption.deferred():
            while self.epoch < self.recipe.epochs:
                self._run_epoch()
                self._check_agreement()
        self.use_best()

    def use_best(self) -> bool:
        """Go back to the best epoch if a promised agreement was measured after each; return whether there is one."""
        best = "kept" in self.curve[-1] and self.sound_epoch > 0
        if best:
            self.encoder.load_state_dict(self.sound_weights)
        return best

    @property
    def encoder(self) -> nn.Module:
        """Encoder to be trained: the average of its weights over the steps if the recipe asks."""
        if self.averaged is None:
            return self.learner.encoder
        inner: nn.Module = self.averaged.module
        return inner

    @property
    def classifier(self) -> nn.Linear | None:
        """Linear classifier of the embeddings, if one fits them: that of the last step does not fit averaged weights.

        Column ``c`` must be label ``c``, so labels with gaps have none.
        """
        images = self.feed.images
        if self.averaged is not None or images.labels is None or self.learner.classifier is None:
            return None
        classes = torch.as_tensor(images.labels).unique()
        return self.learner.classifier if torch.equal(classes, torch.arange(len(classes))) else None

    @property
    def plan(self) -> str:
        """Return how many steps there will be, as one sentence."""
        count, steps, batch = len(self.feed.images), self.feed.steps, self.feed.batch
        left = f" ({count - steps * batch} of {count} images are left over in each)" if count % batch else ""
        advice = "; a smaller batch takes more steps" if steps == 1 else ""
        return (
            f"training: {self.recipe.epochs} epochs of {steps} steps of {batch} images{left}, "
            f"{self.recipe.epochs * steps} steps in all{advice}"
        )

    @property
    def progress(self) -> float:
        """Fraction of all steps that are done, 0 to 1."""
        return (self.epoch * self.feed.steps + self.step) / (self.recipe.epochs * self.feed.steps)

    @property
    def _stops(self) -> bool:
        """Return whether this process wants to stop: asked to, or the next step would end too late."""
        return self.interruption.requested or (monotonic() + self.pace > self.until and self.progress < 1)

    def _reason(self) -> BaseException:
        """Return why training stops. All ask, and so wait for the one that writes: torchrun stops all when one has ended."""
        if somewhere(self.interruption.requested, self.fabric.device) or self.until == inf:
            return KeyboardInterrupt()
        done = f"{self.epoch} of {self.recipe.epochs} epochs and {self.step} of {self.feed.steps} steps of the next"
        so_far = isinstance(self.recipe.architecture, LoadedEncoder)  # it was an encoder before the first step
        state = (
            f"trained:{self.folder} is the encoder so far" if so_far else f"what is in {self.folder} is no encoder yet"
        )
        advice = f"{state}; run the same command again to go on"
        return BudgetSpentError(f"the budget was spent after {done} ({self.progress:.0%} of the training); {advice}")

    def _run_epoch(self) -> None:
        began, kept = monotonic(), monotonic()
        if self.step == 0:
            self.learner.before_epoch(self.epoch, self._codes)
            if self.recipe.adversary is not None:
                self.prepared = self.recipe.adversary.prepare(self.epoch, self.feed, self._codes, self.prepared)
        noise = self.feed.noise.fork("epoch", self.epoch)
        total = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        look, stopped = LOOKED.get(self.fabric.device.type, 25), False
        for rows, pixels in self.feed.epoch(self.epoch, self.step):
            since = monotonic()
            total += self._train_step(rows, pixels, noise[rows]).double()
            self.step, self.pace = self.step + 1, monotonic() - since
            kept_long = monotonic() - kept > SECONDS
            if self.step % look == 0 or self.step == self.feed.steps:
                stopped = somewhere(self._stops, self.fabric.device)
                self._check_finite(total)
            elif self.fabric.world_size == 1:
                stopped = self._stops  # with no one to agree with, at once
            self.show_progress(f"epoch {self.epoch + 1} of {self.recipe.epochs}", self.progress)
            if stopped or (kept_long and self.step < self.feed.steps):
                self._check_finite(total)
                self.total += float(total)
                total.zero_()
                self.seconds += monotonic() - began
                self._save()
                began = kept = monotonic()
            if stopped:
                raise self._reason()
        mean = (self.total + float(total)) / self.feed.steps
        seconds = self.seconds + monotonic() - began
        self.epoch, self.step, self.total, self.seconds = self.epoch + 1, 0, 0.0, 0.0
        numbers = {
            "epoch": float(self.epoch),
            "loss": mean,
            "rate": float(self.optimiser.param_groups[0]["lr"]),
            "seconds": seconds,
            "images_per_second": self.feed.steps * self.recipe.batch / seconds,
        }
        self._remember(numbers | self._health())

    def _train_step(self, rows: Int[Tensor, "b"], pixels: Pixels, noise: Noise) -> Tensor:
        recipe, progress = self.recipe, self.progress
        torch.manual_seed(hashed(recipe.seed, self.epoch, self.step, rank()) % 2**63)
        noise = noise.to(pixels.device)
        pixels = pixels.to(self.dtype)
        labels = None if self.labels is None else self.labels[rows].to(pixels.device)
        views = views_of(pixels, recipe, noise)
        whole = views[0] if recipe.native else pixels  # an image without augmentation would be read twice
        batch = Batch(rows.to(pixels.device), whole, views, labels, noise, progress=progress)
        if recipe.adversary is not None and recipe.adversary.attacks:
            # Nothing scales an attack's gradients, and in half precision those of well fitted images would be 0.
            with nullcontext() if recipe.precision == "float16" else self.fabric.autocast():
                batch.attacked = recipe.adversary(self.learner, batch, self.domain, self.prepared)
        # The middle of the step: at its beginning the first rate of a warm-up is 0, at its end the last one of a cosine.
        factor = recipe.schedule.factor(self.epoch + (self.step + 0.5) / self.feed.steps, recipe.epochs)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        loss = self.model(batch)
        self.optimiser.zero_grad()
        self.fabric.backward(loss)
        self.learner.before_step(progress)
        if recipe.clip is not None:
            self.fabric.clip_gradients(self.model, self.optimiser, max_norm=recipe.clip, error_if_nonfinite=False)
        self.optimiser.step()
        self.learner.after_step(progress)
        if self.averaged is not None:
            self.averaged.update_parameters(self.learner.encoder)
        share_statistics(self.learner)
        return loss.detach()

    def _codes(self) -> Codes:
        """Return the codes of all training images, in order and in eval mode."""
        rows, size = range(len(self.feed.images)), 1024
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        return torch.cat([eval_codes(self.learner.encoder, self.feed.pixels(part).to(self.dtype)) for part in parts])

    def _health(self) -> Epoch:
        self._check_finite_weights()
        codes = eval_codes(self.encoder, self.watched.to(self.dtype))
        if not bool(codes.isfinite().all()):  # running statistics may be infinite where weights are not
            raise HoldfastError(f"embeddings are no longer finite after epoch {self.epoch}; {ADVICE}{self._last()}")
        spread = health(codes)
        # Twice in a row, for running statistics of batch norms lag behind in the first steps.
        if spread.collapsed and self.epoch > 1 and self.curve[-1]["spread"] < COLLAPSED:
            raise HoldfastError(
                f"the embeddings have collapsed in epoch {self.epoch}: all images have almost the same one (spread "
                f"{spread.spread:.2g}); lower the learning rate or change the objective{self._last()}"
            )
        numbers = asdict(spread)
        if self.watch is not None:
            numbers |= self.watch(self.encoder)
        if self.bank is not None:
            pixels, labels = self.bank
            codes = eval_codes(self.encoder, pixels.to(self.fabric.device, self.dtype))
            # An untrained encoder says nothing of how steadily training goes.
            before = self.curve[-1] if self.epoch > 1 else {}
            numbers |= neighbour_accuracy(codes, labels.to(codes.device), before)
        return numbers

    def _check_finite(self, total: Tensor) -> None:
        if not isfinite(float(total)):
            raise HoldfastError(
                f"the loss is no longer finite ({float(total):g}) by step {self.step} of epoch {self.epoch + 1}; "
                f"{ADVICE}{self._last()}"
            )

    def _check_agreement(self) -> None:
        """Raise if codes are no longer what they were, and put the encoder back to the last epoch in which they were."""
        now, final = self.curve[-1], self.epoch == self.recipe.epochs
        # Twice in a row, because the largest rates come first, and smaller ones mend what they did.
        if not lost(now) or not (final or any(map(lost, self.curve[-2:-1]))):
            return
        if self.sound_weights:  # none where codes were lost before the first epoch
            self.encoder.load_state_dict(self.sound_weights)
        raise AgreementLostError(
            f"epoch {now['epoch']:.0f}: the embeddings of held-out images moved too far from the original encoder's, "
            f"agreement {now['agreement']:.3f} (1 is unchanged), relative distance {now['relative_distance']:.2f} "
            "(1 is that of their mean). Lower the rate or the radius, or add images.",
            self.sound_epoch,
        )

    def _last(self) -> str:
        kept = self.folder is not None and (self.folder / checkpoints.FILE).exists()
        return f" (the checkpoint before it is kept in {self.folder})" if kept else ""

    def _remember(self, numbers: Epoch) -> None:
        """Add an epoch to the curve and keep everything."""
        self.curve.append(numbers)
        self.learner.after_epoch(numbers)
        if self.watch is not None and not lost(numbers) and rank_of(numbers) >= rank_of(self.curve[self.sound_epoch]):
            weights = self.encoder.state_dict().items()
            self.sound_epoch, self.sound_weights = self.epoch, {name: value.cpu().clone() for name, value in weights}
        # Before the checkpoint, after which a resumed training would not come back to it.
        if rank() == 0:
            self.after_epoch(self.encoder, self.curve)
        self._save()

    def _check_finite_weights(self) -> None:
        if not all(bool(weight.isfinite().all()) for weight in self.learner.parameters()):
            raise HoldfastError(
                f"weights are no longer finite by step {self.step} of epoch {self.epoch + 1}; {ADVICE}{self._last()}"
            )

    def _save(self) -> None:
        self._check_finite_weights()
        if self.folder is None or rank() != 0:
            return
        checkpoints.save(
            self.folder,
            self.identity,
            {
                "learner": self.learner.state_dict(),
                "averaged": None if self.averaged is None else self.averaged.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
                **{name: getattr(self, name) for name in STATE},
            },
        )

    def _restore(self) -> None:
        state = None if self.folder is None else checkpoints.load(self.folder, self.identity)
        if state is None:
            return
        self.learner.load_state_dict(state["learner"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        for name in STATE:
            setattr(self, name, state[name])
        self.curve = [{OLD_NAMES.get(name, name): value for name, value in epoch.items()} for epoch in self.curve]


OLD_NAMES = {"effective_rank": "rankme", "attack_shift": "shift"}
"""Names in checkpoints of earlier versions, and those of today."""
