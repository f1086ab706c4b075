"""The page of the frontier, ``docs/training/frontier.md``, and its picture, from stored numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from studies.agreement.figures import INK, RULE, label, svg_head
from studies.certified.frontier import ANCHORS, BALLS, BANK, MILD, NEGATIVES, PROBED, PUBLISHED, TAUGHT, Case, planned
from studies.common import Results, said, table

FIGURE = "images/study/frontier.svg"
IN_PAPER = {("mnist", "cnn-a"): ("RoCL .2", 0.239)}
"""Average certified radius over 100 images from the paper, for encoders without published weights."""
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
NAMES = {"base": "Base", "cnn-a": "CNN-A", "cnn-b": "CNN-B"}
OF_PUBLISHED, OF_CERTIFIED, WITHOUT = "#0b6e99", "#b24923", "#8a8a8a"
WIDE, HIGH, MARGIN = 330, 250, 44
AIM, WITHIN, TIGHT = 1.25, 0.02, 0.95
"""The aims: the radius over that of the best published encoder, the accuracy that may be lost, certified over attacked."""
OPENING = f"""\
# Accuracy against certified radius

This page compares encoders [trained to be certified](objectives.md#certified) with the published encoders of RVCL.
Both have the same architecture; the published ones are SimCLR, and RoCL at several strengths.
`python -m studies.certified.frontier` trains and measures; `HOLDFAST_REFERENCE` names the folder of images and weights.
`python -m studies --page` writes this page and its picture from the numbers in `studies/stored/frontier`.

- *Accuracy*: 20 nearest neighbours among {BANK:,} training images, on {PROBED:,} test images.
- *Radii*: the first {ANCHORS} test images with {NEGATIVES} negatives each
  ([certified radius](../evaluations/certified.md#certified-radius), tolerance 1e-3).
  They are proved by interval bounds (one pass) and by CROWN, and attacked by `adaptive:restarts=1,steps=25`.
- *Views*: those of the authors' program, which cut away up to three fifths of a digit.
  *Small changes* (a star in the picture) are `{MILD["mnist"]}` for digits and `{MILD["cifar10"]}` for coloured images.
- *Taught by* a published encoder: new weights learn its embeddings by
  [distillation](objectives.md#distillation), `{TAUGHT},fresh=true`, inside the certified loss.
- *Beginning as* a published encoder: the same with `{TAUGHT}`, which begins with its weights.
  Its radius, learning rate and epochs were chosen by other test images than those measured here.
- The others learn by SimCLR.
- *Intervals*: the mean of several seeds with Student's 95% interval; none for one seed.
"""


@dataclass(frozen=True)
class Point:
    """An encoder of the study with what was measured of it, by seed."""

    case: Case
    values: Mapping[str, Sequence[float]]

    def mean(self, quantity: str) -> float:
        """Return the mean over seeds."""
        return mean(self.values[quantity])

    @property
    def radius(self) -> float:
        """Return the larger of two proved radii."""
        return max(self.mean("certified radius, interval"), self.mean("certified radius, crown"))

    @property
    def name(self) -> str:
        """Return what made it."""
        case = self.case
        bounds = f"certified {case.radius_in_words}, share {case.share:g}" if case.share else "without bounds"
        return case.published or f"{bounds}, {case.epochs} epochs" + ", small changes" * bool(case.view) + case.taught

    @property
    def colour(self) -> str:
        """Return what it is drawn in."""
        if self.case.published:
            return OF_PUBLISHED
        return OF_CERTIFIED if self.case.share else WITHOUT

    @property
    def words(self) -> str:
        """Return what stands beside it in the picture."""
        case = self.case
        made = f"{case.radius_in_words}, {case.share:g}" if case.share else "without"
        kept = " from" if case.teacher and not case.fresh else ""
        return case.published or made + "*" * bool(case.view) + f"{kept} {case.teacher}".rstrip()


def points(folder: Path) -> dict[tuple[str, str], list[Point]]:
    """Return the encoders that are stored, by data set and architecture."""
    results, by_network = Results(folder, None), dict[tuple[str, str], list[Point]]()
    for case, seeds in planned():
        found = [one for seed in range(seeds) if (one := results.found(str(case), seed)) is not None]
        if found:
            values = {quantity: [one[quantity] for one in found] for quantity in found[0]}
            by_network.setdefault((case.dataset, case.architecture), []).append(Point(case, values))
    return by_network


def render(folder: Path) -> dict[str, str]:
    """Return the page and its picture by their paths below ``docs``."""
    by_network = points(folder)
    if not by_network:
        return {}
    lines = [OPENING, f"![Accuracy against certified radius](../{FIGURE})"]
    for network, some in by_network.items():
        title = f"{NAMES[network[1]]} on {TITLES[network[0]]}"
        lines += ["", f"## {title}", *aims(network, some)]
        lines += table("Radii", HEADS, [row(point) for point in some])
        ball = BALLS[network[0]]
        lines += table(f"Other certificates, at `{ball}` under cosine", OTHER_HEADS, [others(point) for point in some])
    return {"training/frontier.md": "\n".join(lines) + "\n", FIGURE: picture(by_network)}


HEADS = (
    "encoder",
    "seeds",
    "accuracy",
    "interval",
    "CROWN",
    "attacked",
    "interval over attacked",
    "CROWN over attacked",
)
OTHER_HEADS = ("encoder", "breakaway at most", "overlap at most", "displacement at most", "linear radius", "attacked")


def row(point: Point) -> list[str]:
    """Return what the first table says of an encoder."""
    quantities = ["accuracy", "certified radius, interval", "certified radius, crown", "attacked radius"]
    quantities += ["tightness, interval", "tightness, crown"]
    return [point.name, str(len(point.values["accuracy"])), *(number(point.values[each]) for each in quantities)]


def others(point: Point) -> list[str]:
    """Return what the second table says of an encoder."""
    quantities = ("breakaway", "overlap", "displacement", "linear radius", "attacked linear radius")
    return [point.name, *(number(point.values[each]) for each in quantities)]


def number(values: Sequence[float]) -> str:
    """Return a mean, with an interval if there are seeds for one.

    Example:
        >>> number([0.5]), number([0.5, 0.7])
        ('0.500', '0.600 ± 1.271')
    """
    return said(values).removesuffix(" ± unknown")


def aims(network: tuple[str, str], some: Sequence[Point]) -> Iterator[str]:
    """Yield in sentences which of the aims are met, by the numbers."""
    published = [point for point in some if point.case.published]
    made = [point for point in some if point.case.share]
    plain = [point for point in some if not point.case.published and not point.case.share]
    if not published or not made:
        return
    adversarial = [point for point in published if point.case.published.startswith("RoCL")]
    robust = max(adversarial, key=lambda point: point.radius)
    accurate = robust.mean("accuracy") - WITHIN
    best_name, best = IN_PAPER.get(network, ("", 0.0))
    if robust.radius > best:
        best_name, best = robust.name, robust.radius
    where = "" if best_name in PUBLISHED[network] else ", as the paper says"
    yield ""
    yield (
        f"The best published radius is {best:.3f} ({best_name}{where}); {AIM:g} times that is {AIM * best:.3f}. "
        f"Of the encoders with published weights, {robust.name} has the largest, {robust.radius:.3f}, at accuracy "
        f"{robust.mean('accuracy'):.3f}; two points less are {accurate:.3f}."
    )
    for point in plain:
        how = f"{point.name.removeprefix('without bounds, ')}; {point.case.images:,} images"
        yield (
            f"The same training without bounds ({how}) has accuracy {point.mean('accuracy'):.3f} and radius "
            f"{point.radius:.3f}."
        )
    yield ""
    for point in made:
        accuracy, tight = point.mean("accuracy"), point.mean("tightness, interval")
        yield (
            f"- *{point.name}*: radius {point.radius:.3f}, {point.radius / best:.2f} times the best published "
            f"({'met' if point.radius >= AIM * best else 'missed'}); accuracy {accuracy:.3f} "
            f"({'met' if accuracy >= accurate else 'missed'}); {tight:.2f} of the attacked radius proved by interval bounds "
            f"({'met' if tight >= TIGHT else 'missed'})."
        )


def picture(by_network: Mapping[tuple[str, str], Sequence[Point]]) -> str:
    """Return one panel for each network: certified radius to the right, accuracy upward."""
    width, height = WIDE * len(by_network) + 10, HIGH + 30
    lines = [*svg_head(width, height, "Accuracy of nearest neighbours against certified radius")]
    for place, (network, some) in enumerate(by_network.items()):
        lines += panel(WIDE * place, f"{NAMES[network[1]]} on {TITLES[network[0]]}", some)
    kinds = ("published", OF_PUBLISHED), ("trained to be certified", OF_CERTIFIED), ("the same without bounds", WITHOUT)
    for place, (words, shade) in enumerate(kinds):
        x = MARGIN + 130 * place
        lines += [f'<circle cx="{x}" cy="{HIGH + 12}" r="4" fill="{shade}"/>', label(x + 9, HIGH + 16, words)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def panel(left: float, title: str, some: Sequence[Point]) -> Iterator[str]:
    """Yield the lines of one panel."""
    x0, y0, x1, y1 = left + MARGIN, 24, left + WIDE - 8, HIGH - 30
    most = 1.1 * max(point.radius for point in some)
    accuracies = [point.mean("accuracy") for point in some]
    low, high = min(accuracies) - 0.02, max(accuracies) + 0.02
    yield f'<rect x="{x0:g}" y="{y0:g}" width="{x1 - x0:g}" height="{y1 - y0:g}" fill="none" stroke="{RULE}"/>'
    yield label(x0, y0 - 8, title)
    yield label((x0 + x1) / 2, y1 + 26, "average certified radius", "middle", 9)
    for share in (0.0, 0.5, 1.0):
        yield label(x0 + share * (x1 - x0), y1 + 12, f"{share * most:.3f}", "middle", 9)
        yield label(x0 - 4, y1 - share * (y1 - y0) + 3, f"{low + share * (high - low):.2f}", "end", 9)
    taken: list[tuple[str, float]] = []  # side and height of each label, so that none is written over another
    for point, accuracy in zip(some, accuracies, strict=True):
        x, y = x0 + point.radius / most * (x1 - x0), y1 - (accuracy - low) / (high - low) * (y1 - y0)
        end = "end" if x > (x0 + x1) / 2 else "start"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{point.colour}" stroke="{INK}" stroke-width="0.5"/>'
        height = y + 3
        while any(side == end and abs(height - other) < 9 for side, other in taken):
            height -= 9
        taken.append((end, height))
        yield label(x + (-7 if end == "end" else 7), height, point.words, end, 9)
