"""The two halves of a measurement: ``observe`` sample by sample, anywhere; ``conclude`` about the population, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from holdfast.divergences import Divergence
from holdfast.encoder import Codes, Encoder, Pixels
from holdfast.errors import HoldfastError
from holdfast.images import Images
from holdfast.noise import hashed
from holdfast.objective import Scene
from holdfast.result import EncoderInfo, Findings, ImagesInfo, Picture, Result
from holdfast.run import Observed, Run
from holdfast.spelling import READERS


class Population:
    """The images of a run together with their clean codes, on the run's device and in its precision."""

    def __init__(self, encoder: Encoder, images: Images, run: Run, codes: Codes | None = None) -> None:
        self.encoder, self.images, self.run = encoder.to(run.device, run.dtype), images, run
        self._codes = codes
        self._fitted: dict[Divergence, Divergence] = {}

    @cached_property
    def codes(self) -> Float[Tensor, "n d"]:
        """Clean codes of all images, in their order."""
        if self._codes is not None:
            return self._codes.to(self.run.device)
        return self.run.batches(
            range(len(self.images)), lambda rows: {"codes": represent(self.encoder, self.images, rows, self.run)}
        )["codes"]

    @property
    def encoder_info(self) -> EncoderInfo:
        """Return what a record says of the encoder."""
        return EncoderInfo(
            name=self.encoder.name,
            source=self.encoder.source,
            fingerprint=self.encoder.fingerprint,
            parameters=self.encoder.parameters,
            features=self.codes.shape[1],
            inputs=self.encoder.inputs,
            warnings=(self.encoder.caution,) if self.encoder.caution else (),
        )

    @property
    def images_info(self) -> ImagesInfo:
        """Return what a record says of the images."""
        return ImagesInfo(
            name=self.images.name,
            fingerprint=self.images.fingerprint,
            count=len(self.images),
            skipped=tuple(f"{name}: {reason}" for name, reason in self.images.skipped.items()),
        )

    def pixels(self, rows: Sequence[int]) -> Pixels:
        """Return the images at ``rows``, checked against the encoder's domain."""
        return self.images.pixels(rows, self.run.device, self.run.dtype, self.encoder.domain)

    def scene(self, rows: Sequence[int], targets: Sequence[int] | None = None, rivals: Tensor | None = None) -> Scene:
        """Return the images at ``rows`` set for attack: towards ``targets``, against ``rivals`` (codes, b x k x d)."""
        pixels = self.pixels(rows)
        noise = self.run.noise([self.images.ids[row] for row in rows])
        return Scene(self.encoder, pixels, noise, None if targets is None else self.pixels(targets), rivals)

    def fitted(self, divergence: Divergence) -> Divergence:
        """Return ``divergence`` with what it learns from these clean codes, learned once."""
        if divergence not in self._fitted:
            self._fitted[divergence] = divergence.fit(self.codes)
        return self._fitted[divergence]

    def encode(self, pixels: Pixels) -> Codes:
        """Return the codes of ``pixels``, on this run's device."""
        with torch.no_grad():
            return self.encoder.forward(pixels)

    @cached_property
    def shuffled(self) -> Int[Tensor, "n"]:
        """All rows in an order that the seed and the ids alone decide: the source of every random choice of samples."""
        return torch.tensor(
            sorted(range(len(self.images)), key=lambda row: hashed(self.run.seed, "order", self.images.ids[row]))
        )

    def choose(self, count: int) -> list[int]:
        """Return up to ``count`` randomly chosen rows, ascending; the same samples however the images are ordered."""
        if count < 1:
            raise HoldfastError(f"the number of samples to look at must be at least 1, got {count}")
        return sorted(self.shuffled[:count].tolist())

    @cached_property
    def originals(self) -> Int[Tensor, "n"]:
        """For each row the row that stands for all exact copies of its image: the first of them in ``shuffled``."""
        digests, first = self.images.digests, dict[bytes, int]()
        for row in self.shuffled.tolist():
            first.setdefault(digests[row], row)
        return torch.tensor([first[digest] for digest in digests])

    @cached_property
    def partners(self) -> Int[Tensor, "n"]:
        """For each row the row of another image, chosen at random; every image is one other's partner.

        Raises:
            HoldfastError: there is only one image.
        """
        return self.others(range(len(self.images)), 1)[:, 0]

    def couples(self, count: int) -> list[int]:
        """Return up to ``count`` randomly chosen rows, ascending, whose pairs with their partners share no image."""
        if count < 1:
            raise HoldfastError(f"the number of pairs to look at must be at least 1, got {count}")
        return sorted(self.shuffled[: max(1, len(self.images) - 1) : 2][:count].tolist())

    def others(self, rows: Sequence[int], count: int) -> Int[Tensor, "b k"]:
        """Return for each of ``rows`` up to ``count`` other images chosen at random: those after it in ``shuffled``.

        Raises:
            HoldfastError: there is only one image.
        """
        if len(self.images) < 2:
            raise HoldfastError("pairs of images are needed, but there is only one image; add images")
        steps = 1 + torch.arange(min(count, len(self.images) - 1))
        return self.shuffled[(self._places[list(rows)][:, None] + steps) % len(self.images)]

    @cached_property
    def _places(self) -> Int[Tensor, "n"]:
        """Where each row stands in ``shuffled``."""
        return self.shuffled.argsort()


def represent(encoder: Encoder, images: Images, rows: Sequence[int], run: Run) -> Codes:
    """Return the clean codes of the images at ``rows``, shape (b, d)."""
    with torch.no_grad():
        codes = encoder.forward(images.pixels(rows, run.device, run.dtype, encoder.domain))
    bad = ~torch.isfinite(codes).all(1)
    if bad.any():
        first = images.ids[rows[int(bad.nonzero()[0])]]
        raise HoldfastError(
            f"{encoder.name} returned NaN or infinite codes for image {first!r}; check its weights and precision"
        )
    largest, info = float(codes.abs().max()), torch.finfo(codes.dtype)
    if largest > info.max**0.45 or 0 < largest < info.tiny**0.45:
        raise HoldfastError(
            f"{encoder.name} returned codes as large as {largest:.0e}, whose squares {codes.dtype} cannot hold; "
            "rescale the encoder's output, or use --precision float64"
        )
    return codes


@dataclass(frozen=True)
class Observation(ABC):
    """What is seen of each sample. Evaluations that ask for an equal observation share one computation of it."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """Whether ``observe`` looks at labels, which are then part of its key."""

    @abstractmethod
    def rows(self, population: Population) -> list[int]:
        """Return which samples are looked at."""

    @abstractmethod
    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        """Return what is seen of ``rows``: tensors whose first axis runs over them. Independent of other rows."""

    def ids(self, population: Population) -> tuple[str, ...]:
        """Return what each row there can be is called: the image's id, unless something else than images is looked at."""
        return population.images.ids

    def inputs(self, population: Population) -> int:
        """Return how many inputs one row makes the encoder look at, so that shards last about equally long."""
        return 1


@final
@dataclass(frozen=True)
class Joint(Observation):
    """Several observations of the same rows as one; entry ``name`` of part ``k`` is called ``k.name``."""

    parts: tuple[Observation, ...]
    name = "joint"
    version = 1

    def rows(self, population: Population) -> list[int]:
        first, *others = (part.rows(population) for part in self.parts)
        assert all(other == first for other in others), "the parts of a joint observation look at different rows"
        return first

    def observe(self, population: Population, rows: Sequence[int]) -> Observed:
        return joined([part.observe(population, rows) for part in self.parts])


def joined(parts: Sequence[Observed]) -> Observed:
    """Return what several observations saw of the same rows as one."""
    return {f"{k}.{name}": value for k, part in enumerate(parts) for name, value in part.items()}


@dataclass(frozen=True)
class Evaluation(ABC):
    """A measurement of an encoder on unlabelled images. Its fields are its settings; their defaults are the paper's."""

    name: ClassVar[str]
    version: ClassVar[int]
    """Raised whenever the numbers change."""
    uses_labels: ClassVar[bool] = False
    """Whether ``conclude`` looks at labels, which are then part of its key."""
    needs_gradients: ClassVar[bool] = False
    """Whether the encoder must pass gradients or be traced, whatever the attacks are."""
    title: ClassVar[str]
    meaning: ClassVar[str]
    """What the numbers mean, in two sentences: reports print it."""
    headline: ClassVar[tuple[str, ...]]
    """The quantities that stand for this evaluation in a summary table."""

    def __post_init__(self) -> None:
        """Read settings that are given as text, ``balls=("linf:8/255",)``."""
        for field in fields(self):
            kind, value = str(field.type).removeprefix("tuple[").removesuffix(", ...]"), getattr(self, field.name)
            if kind in READERS and isinstance(value, str):
                object.__setattr__(self, field.name, READERS[kind](value))
            elif kind in READERS and isinstance(value, (list, tuple)):
                parts = tuple(READERS[kind](part) if isinstance(part, str) else part for part in value)
                object.__setattr__(self, field.name, parts)

    @abstractmethod
    def observation(self) -> Observation:
        """Return what must be seen of each sample."""

    @abstractmethod
    def conclude(self, population: Population, rows: Sequence[int], observed: Observed) -> Findings:
        """Return the findings from what was seen of ``rows``."""

    def illustrate(self, population: Population, rows: Sequence[int], findings: Findings) -> tuple[Picture, ...]:
        """Return pictures of the samples a reader would ask to see; none by default."""
        return ()

    def __call__(self, encoder: Encoder, images: Images, run: Run | None = None) -> Result:
        """Measure ``encoder`` on ``images`` in this process."""
        population = Population(encoder, images, run or Run())
        observation = self.observation()
        rows = observation.rows(population)
        observed = population.run.batches(rows, lambda batch: observation.observe(population, batch))
        return self.result(population, rows, observed)

    def result(self, population: Population, rows: Sequence[int], observed: Observed) -> Result:
        """Return the findings, their pictures and everything that identifies them."""
        findings = self.conclude(population, rows, observed)
        pictures = self.illustrate(population, rows, findings)
        return Result(
            evaluation=self.name,
            version=self.version,
            title=self.title,
            meaning=self.meaning,
            headline=self.headline,
            encoder=population.encoder_info,
            images=population.images_info,
            settings=protocol(self, population.images, population.run),
            findings=findings.model_copy(update={"pictures": pictures}),
        )


def settings(thing: Evaluation | Observation) -> dict[str, Any]:
    """Return the fields of ``thing`` as JSON values, settings objects in their text form."""
    return {field.name: _plain(getattr(thing, field.name)) for field in fields(thing)}


def protocol(evaluation: Evaluation, images: Images, run: Run) -> dict[str, Any]:
    """Return everything but the encoder, the images and the version that decides the numbers of ``evaluation``."""
    own: dict[str, Any] = {**settings(evaluation), "seed": run.seed, "precision": run.precision}
    for what in pieces(evaluation):
        own |= circumstances(what, images, run)
    return own


def circumstances(what: Evaluation | Observation, images: Images, run: Run) -> dict[str, Any]:
    """Return what decides the numbers of ``what`` beside its settings, where it departs from the usual.

    Results stored before there were such circumstances keep their keys.
    """
    labels = {"labels": images.labels_fingerprint} if what.uses_labels and images.labels_fingerprint else {}
    drawn = {} if run.attack_seed in (None, run.seed) else {"attack_seed": run.attack_seed}
    return {**labels, **drawn}


def parts(observation: Observation) -> tuple[Observation, ...]:
    """Return the observations that are computed and kept one by one."""
    return (
        tuple(p for part in observation.parts for p in parts(part))
        if isinstance(observation, Joint)
        else (observation,)
    )


def pieces(evaluation: Evaluation) -> tuple[Evaluation | Observation, ...]:
    """Return ``evaluation`` and the observations it is concluded from."""
    return (evaluation, *parts(evaluation.observation()))


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)
