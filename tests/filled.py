"""A table of encoders and evaluations, filled without a request: encoders and images as they are."""

from collections.abc import Callable, Sequence
from time import monotonic

from holdfast.core.encoder import Encoder
from holdfast.core.images import Images
from holdfast.core.records import Failure, Result
from holdfast.core.run_settings import RunSettings
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.store import Store
from holdfast.run import table
from holdfast.run.engines.base import Engine, Local
from holdfast.run.inputs import Inputs
from holdfast.run.run import Run
from holdfast.run.scheduler import WriteReport


class Given(Inputs):
    """Encoders, with functions that return the images and the bank of each."""

    def __init__(
        self,
        encoders: Sequence[Encoder],
        images_for: Callable[[Encoder], Images],
        bank_for: Callable[[Encoder], Images | None],
    ) -> None:
        for name, value in {"encoders": encoders, "images_for": images_for, "bank_for": bank_for}.items():
            object.__setattr__(self, name, value)

    def images(self, encoder: Encoder) -> Images:
        """Return the images of ``encoder``."""
        images: Images = vars(self)["images_for"](encoder)
        return images

    def bank(self, encoder: Encoder) -> Images | None:
        """Return the bank of ``encoder``."""
        bank: Images | None = vars(self)["bank_for"](encoder)
        return bank


class Told:
    """A display that hands progress on, and passes over sentences."""

    def __init__(self, progress: Callable[[str, float, float], object]) -> None:
        self.progress = progress

    def __call__(self, doing: str, share: float, seconds: float, /) -> None:
        """Hand on what is being done, the finished share and the seconds left."""
        self.progress(doing, share, seconds)

    def say(self, sentence: str, /) -> None:
        """Say nothing."""


def fill_table(
    encoders: Sequence[Encoder],
    images_for: Callable[[Encoder], Images],
    evaluations: Sequence[Evaluation],
    settings: RunSettings,
    store: Store,
    engine: Engine | None = None,
    *,
    progress: Callable[[str, float, float], object] | None = None,
    budget: float | None = None,
    began: float | None = None,
    bank_for: Callable[[Encoder], Images | None] = lambda _: None,
    write: WriteReport | None = None,
) -> tuple[list[Result], list[Failure]]:
    """Return the results and failures of ``evaluations``."""
    began = monotonic() if began is None else began
    run = Run(settings, store, engine or Local(), progress and Told(progress), budget, began)
    return table.fill_table(Given(encoders, images_for, bank_for), evaluations, settings, run.work, write)
