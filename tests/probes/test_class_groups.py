"""The probe of class groups answers as a head on all classes whose answers are looked up in the groups by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.attacks.attacked_codes import Targeted
from holdfast.attacks.evaluations.impersonation import Impersonation
from holdfast.attacks.gradient import GradientAttack
from holdfast.core.balls import Linf
from holdfast.core.divergences import L2Distance
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, HoldfastError, OutOfRange, UnknownName, Unreadable
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.measure.bank import apart
from holdfast.measure.population import Population
from holdfast.probes.base import Probe
from holdfast.probes.class_groups import ClassGroups
from holdfast.probes.linear import Linear

BREEDS = ("tabby", "lynx", "pug", "husky", "boat")
GROUPS = {"tabby": "Cat", "lynx": "Cat", "pug": "Dog", "husky": "Dog"}
TEXT = "class,group\n" + "".join(f"{name},{group}\n" for name, group in GROUPS.items())


def sets(number: int = 60) -> tuple[Images, Images]:
    """Images of cats and dogs, and a bank of breeds and boats: a blurred pattern for each breed."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(len(BREEDS), 1, 4, 4, generator=generator)

    def drawn(kinds: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(len(kinds), 1, 4, 4, generator=generator)
        return 0.45 * patterns[kinds] + 0.55 * noise

    of_bank, of_images = torch.arange(150) % len(BREEDS), torch.arange(number) % 4
    bank = Images(drawn(of_bank), labels=of_bank, name="breeds", classes=BREEDS)
    return Images(drawn(of_images), labels=of_images // 2, name="pets", classes=("Cat", "Dog")), bank


def encoder() -> Encoder:
    torch.manual_seed(1)
    return Encoder(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 6), torch.nn.Tanh()), "e", Domain((1, 4, 4))
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pets.csv"
    path.write_text(TEXT)
    return path


def aligned(images: Images, bank: Images) -> Population:
    """The population of a run, in which both sets number classes of one name alike."""
    run = RunSettings(precision="float64")
    return Population(encoder(), images, run, bank=Population(encoder(), apart(bank, images), run))


@pytest.mark.parametrize("recipe", ["lbfgs", "rvcl"])
def test_answers_are_those_of_the_linear_probe_by_group(recipe: str, file: Path) -> None:
    images, bank = sets()
    population = aligned(images, bank)
    probe, fine = (population.learned(each) for each in (ClassGroups(str(file), recipe), Linear(recipe)))
    names = population.bank.images.classes
    codes, labels = population.codes, population.labels
    answers = [GROUPS.get(names[int(fine.classes[k])], "none") for k in fine.scores(codes).argmax(1)]
    assert set(answers) == {"Cat", "Dog", "none"}, "vacuous: one of the answers never comes up"
    expected = torch.tensor([answer == ("Cat", "Dog")[label] for answer, label in zip(answers, labels, strict=True)])
    assert torch.equal(probe.ranks(codes, labels) == 0, expected)
    assert 0.5 < float(expected.double().mean()) < 1
    best = {
        group: [k for k, c in enumerate(fine.classes) if GROUPS.get(names[int(c)]) == group] for group in ("Cat", "Dog")
    }
    for column, group in enumerate(("Cat", "Dog")):
        torch.testing.assert_close(probe.scores(codes)[:, column], fine.scores(codes)[:, best[group]].amax(1))


def test_impersonation_of_groups_is_counted_as_the_paper_counts_it(file: Path) -> None:
    """Both right when clean, never of one group, and success where the answer is any class of the target's group."""
    images, bank = sets()
    attack = GradientAttack(steps=20)
    tuned = Impersonation((Linf(0.3),), (attack,), (L2Distance(),), 30, ClassGroups(str(file)), by_class=True)
    run = RunSettings(precision="float64")
    result = tuned(encoder(), images, run, bank)
    (series,) = [series for series in result.findings.series if series.quantity == "impersonation_success"]
    population = aligned(images, bank)
    fine, names = population.learned(Linear()), population.bank.images.classes

    def group(codes: torch.Tensor) -> list[str]:
        return [GROUPS.get(names[int(fine.classes[k])], "none") for k in fine.scores(codes).argmax(1)]

    targeted = tuned.observation().parts[0]
    assert isinstance(targeted, Targeted)
    rows = targeted.rows(population)
    partners = targeted.paired(population).partners[rows].tolist()
    observed = targeted.of_attack(attack, targeted.observe(population, rows))
    called = [("Cat", "Dog")[label] for label in population.labels.tolist()]
    clean, ahead, back = (group(codes) for codes in (population.codes, observed["ahead"], observed["back"]))
    counted = 0
    for k, (row, partner) in enumerate(zip(rows, partners, strict=True)):
        assert called[row] != called[partner]
        if clean[row] != called[row] or clean[partner] != called[partner]:
            assert series.values[k] != series.values[k]
            continue
        counted += 1
        assert series.values[k] == ((ahead[k] == called[partner]) + (back[k] == called[row])) / 2
    assert counted > 5
    assert {0.0, 0.5, 1.0} & set(series.values) != {0.0}, "vacuous: no attack succeeds"


def test_files_that_do_not_fit(file: Path, tmp_path: Path) -> None:
    images, bank = sets()
    for text, kind in [
        ("tabby\n", OutOfRange),
        ("tabby,Cat\ntabby,Dog\n", Conflict),
        ("class,group\n", Unreadable),
        ("tabby,\n", OutOfRange),
    ]:
        (tmp_path / "other.csv").write_text(text)
        with pytest.raises(kind):
            ClassGroups(str(tmp_path / "other.csv"))
    with pytest.raises(Unreadable):
        ClassGroups(str(tmp_path / "none.csv"))
    for text, wrong in [("tabby,Cat\npugg,Dog\n", "pugg"), ("tabby,Cat\npug,Bird\n", "Bird")]:
        file.write_text(text)
        with pytest.raises(UnknownName) as caught:
            aligned(images, bank).learned(ClassGroups(str(file)))
        assert caught.value.got == wrong
    file.write_text("tabby,Cat\nlynx,Cat\n")
    with pytest.raises(HoldfastError):
        aligned(images, bank).learned(ClassGroups(str(file)))


def test_other_groups_have_other_keys(file: Path) -> None:
    before = str(ClassGroups(str(file)))
    assert Probe.read(before) == ClassGroups(str(file))
    file.write_text(TEXT.replace("lynx,Cat", "lynx,Dog"))
    assert str(ClassGroups(str(file))) != before
    with pytest.raises(Conflict):
        Probe.read(before)
