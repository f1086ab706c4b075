"""What evaluations of attacked embeddings share: balls, attacks and distances, what is observed, pictures of extremes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.attacks.attacked_codes import ATTACKS, BALLS, DIVERGENCES, Case, Targeted, Untargeted, cases, change
from holdfast.attacks.base import Attack
from holdfast.attacks.presets import aim_of, read_loss
from holdfast.core.balls import Ball
from holdfast.core.divergences import Divergence
from holdfast.core.encoder import Pixels
from holdfast.core.pictures import ends
from holdfast.core.records import Findings, Picture
from holdfast.core.run_settings import Observed
from holdfast.measure.evaluation import Evaluation
from holdfast.measure.observation import Joint, pictures_of
from holdfast.measure.population import Population


@dataclass(frozen=True)
class AttackedEvaluation(Evaluation):
    """Evaluation of what attacks do in every case: each ball, attack and distance between embeddings."""

    balls: tuple[Ball, ...] = BALLS
    """Perturbation sets."""
    attacks: tuple[Attack, ...] = ATTACKS
    """Attacks: the published one (`u-pgd`) and the recommended one."""
    divergences: tuple[Divergence, ...] = DIVERGENCES
    """Distances between embeddings."""
    objective = ""
    partial = True

    @abstractmethod
    def _attacks(self, ball: Ball, divergence: Divergence) -> Untargeted | Targeted:
        """All attacks within ``ball`` on ``divergence``."""

    def _parts(self) -> tuple[Untargeted | Targeted, ...]:
        attacks = [self._attacks(ball, divergence) for ball in self.balls for divergence in self.divergences]
        return tuple(dict.fromkeys(attacks))

    def observation(self) -> Joint:
        return Joint(self._parts())

    def _cases(self) -> list[Case]:
        return cases(self.balls, self.attacks, self.divergences, self.objective)

    @property
    def _shown_case(self) -> Case:
        """The case that report pictures show: last attack, widest ball, first divergence."""
        widest = max(reversed(self.balls), key=lambda ball: ball.radius)
        return next(case for case in self._cases() if (case.ball, case.attack) == (widest, self.attacks[-1]))

    def _after(self, case: Case, observed: Observed) -> Observed:
        """Embeddings of images after the attack of ``case``."""
        attacks = self._attacks(case.ball, case.divergence)
        return attacks.of_attack(case.attack, self.observation().of(attacks, observed))

    def _moved(self, population: Population, case: Case, *rows: Sequence[int]) -> Pixels:
        """Images after the attack of ``case``; targeted attacks take rows and their targets."""
        attacks = self._attacks(case.ball, case.divergence)
        return attacks.pixels(population, *rows)[self.attacks.index(case.attack)]

    def _extremes(
        self,
        population: Population,
        rows: Sequence[int],
        findings: Findings,
        quantity: str,
        attack: Callable[[Case, list[int]], dict[str, Pixels]],
    ) -> tuple[Picture, ...]:
        """Pictures of the images where a metric is largest and smallest: clean, attacked, change.

        Args:
            rows: Rows that the findings are of.
            quantity: Metric that picks the images.
            attack: Takes case and rows and returns, by label, the attacked images and any others to show.
        """
        case = self._shown_case
        values = next(s.values for s in findings.series if s.quantity == quantity and s.conditions == case.conditions)
        positions, domain = ends(values), population.encoder.domain
        if not positions or len(domain.shape) != 3:
            return ()
        shown = [rows[position] for position in positions]
        parts = {"clean": population.pixels(shown), **attack(case, shown)}
        parts["change"] = change(parts["clean"], parts["attacked"], domain, case.ball.radius)
        name, where = quantity.replace("_", " "), ", ".join(case.conditions.values())
        captions = [f"{findings.ids[place]}: {name} {values[place]:.3g} ({where})" for place in positions]
        return pictures_of(captions, parts, domain)


def check_objective(objective: str, divergence: Divergence) -> None:
    """Check that untargeted attacks can maximise ``objective``.

    Raises:
        HoldfastError: It is neither a distance nor a loss of one image.
    """
    if loss := aim_of(objective, divergence)[1]:
        read_loss(loss)  # which says what is wrong with it
