"""Attacked images: the attack of every preset, whatever the batch, and a record that can be checked."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from holdfast.attacks.adversarial import Adversarial, AdversarialImages, adversarial, even
from holdfast.attacks.attack_files import replay, write_attack
from holdfast.attacks.attacked_codes import Untargeted
from holdfast.attacks.black_box import SquareAttack
from holdfast.attacks.gradient import GradientAttack
from holdfast.attacks.objectives.contrast import Queue
from holdfast.attacks.objectives.simple import Away, Misretrieval, Toward
from holdfast.attacks.presets import PRESETS, Preset, rivals_of
from holdfast.core.balls import Linf
from holdfast.core.divergences import Rank, Whitened
from holdfast.core.encoder import Domain
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.data import load as load_images
from holdfast.encoders import load
from holdfast.measure.population import Population
from holdfast.measure.store import Store
from holdfast.run.run import Run
from holdfast.run.shards import observe_shard
from tests.facts import refused
from tests.tiny import encoder as tiny_encoder
from tests.tiny import images as tiny_images

ENCODER = load("builtin:digits-random")
DIGITS = load_images("builtin:digits", Domain((1, 8, 8)), limit=11)
SHORT = GradientAttack(steps=2)


def population(batch_size: int = 256, seed: int = 0, count: int = 11) -> Population:
    return Population(ENCODER, DIGITS[range(count)], RunSettings(seed=seed, batch_size=batch_size))


def preset(objective, attack=SHORT, ball=Linf(0.05), prepare=None) -> Preset:  # noqa: B008  (frozen)
    return Preset(objective, attack, ball, "test", prepare)


def attack(among: Population, chosen: Preset) -> Adversarial:
    asked = AdversarialImages.of(chosen, among)
    rows = asked.rows(among)
    seen, _ = observe_shard(among, (asked, rows))
    if isinstance(seen, Exception):
        raise seen
    return adversarial(among, asked, rows, seen)


def found(name: str, among: Population) -> Adversarial:
    known = PRESETS[name]
    return attack(among, preset(known.objective, SHORT, known.ball, known.prepare))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_gains_inside_its_ball(name):
    one = found(name, population())
    views = 2 if PRESETS[name].prepare else 1
    assert len(one.ids) == len(one.attacked) == views * len(DIGITS)
    assert len(set(one.ids)) == len(one.ids)
    assert bool((PRESETS[name].ball.norm(one.attacked - one.clean) <= PRESETS[name].ball.radius * (1 + 1e-5)).all())
    assert float(one.gain.mean()) > float(one.clean_gain.mean())
    with torch.no_grad():
        assert torch.allclose(ENCODER(one.attacked), one.codes, atol=1e-6)
        assert torch.allclose(ENCODER(one.clean), one.clean_codes, atol=1e-6)


@pytest.mark.parametrize("name", [name for name, known in PRESETS.items() if known.objective.per_sample])
def test_batches_change_nothing_where_a_goal_is_per_sample(name):
    whole, parts = found(name, population()), found(name, population(batch_size=4))
    assert torch.allclose(whole.attacked, parts.attacked, atol=1e-5)
    assert parts.batches == (3, 4)
    assert not torch.equal(whole.attacked, found(name, population(seed=1)).attacked), "vacuous: nothing is random"


def test_batches_matter_where_it_is_not_and_none_is_a_remnant():
    whole, parts = found("rocl", population()), found("rocl", population(batch_size=10))
    assert not torch.equal(whole.attacked, parts.attacked)
    assert (whole.batches, parts.batches) == ((11,), (5, 6))


def test_views_of_an_image_follow_each_other():
    one = found("acl-a2a", population(count=3))
    assert one.ids[:2] == (f"{DIGITS.ids[0]} view 1", f"{DIGITS.ids[0]} view 2")
    assert one.rows.tolist() == [0, 0, 1, 1, 2, 2]
    pixels = population(count=3).pixels(range(3))
    for view, row in zip(one.clean, one.rows.tolist(), strict=True):
        assert [is_moved(view, image) for image in pixels] == [row == other for other in range(3)]


def is_moved(view, image) -> bool:
    """Return whether ``view`` is ``image`` moved by a pixel at most, edges repeated."""
    wide = torch.nn.functional.pad(image[None], (1, 1, 1, 1), mode="replicate")[0]
    return any(torch.equal(view, wide[:, y : y + 8, x : x + 8]) for y in range(3) for x in range(3))


def test_untargeted_attacks_are_those_that_are_measured():
    among = population()
    measured = Untargeted(Linf(0.05), (SHORT,), Away().divergence, samples=11)
    codes = measured.observe(among, measured.rows(among))
    assert torch.equal(attack(among, preset(Away())).codes, *codes.values())


def test_targets_are_partners_and_are_approached():
    among = population()
    one = attack(among, preset(Toward()))
    assert one.targets == tuple(among.partners.tolist())
    goals = among.codes[list(one.targets)]
    before, after = (torch.linalg.vector_norm(codes - goals, dim=1) for codes in (one.clean_codes, one.codes))
    assert bool((after < before).all())
    assert torch.allclose(one.gain, -after, atol=1e-6)


@pytest.mark.parametrize("objective", [Queue(), Misretrieval()])
def test_rivals_are_other_images_whatever_the_batch(objective):
    whole, parts = (attack(population(batch_size=size), preset(objective)) for size in (256, 3))
    assert torch.allclose(whole.gain, parts.gain, atol=1e-5)
    with refused(HoldfastError, "embeddings", "there is one"):
        attack(population(count=1), preset(objective))


def test_random_rivals_are_others_drawn_without_repetition(monkeypatch):
    among = population()
    assert_others(rivals_of(among, range(11), Queue()), among, 10)
    monkeypatch.setattr("holdfast.attacks.presets.RANDOM", 4)
    assert_others(rivals_of(among, range(11), Queue()), among, 4)


def assert_others(rivals, among: Population, count: int) -> None:
    for row, codes in enumerate(rivals):
        drawn = {tuple(code.tolist()) for code in codes}
        others = {tuple(code.tolist()) for other, code in enumerate(among.codes) if other != row}
        assert len(drawn) == count
        assert drawn <= others


def test_misretrieval_faces_the_nearest_of_the_others():
    among = population()
    one = attack(among, preset(Misretrieval()))
    distance = torch.cdist(among.codes, among.codes).fill_diagonal_(torch.inf)
    # At the clean image the margin to the nearest rival is minus half the distance.
    assert torch.allclose(one.clean_gain, -distance.min(1).values / 2, atol=1e-5)


def test_a_divergence_learns_from_the_clean_codes():
    among = population()
    one = attack(among, preset(Away(Whitened())))
    assert torch.allclose(one.gain, Whitened().fit(among.codes)(one.codes, one.clean_codes), atol=1e-4)


def test_a_stepwise_divergence_is_for_the_score_only_attack():
    with refused(HoldfastError, "rank", "pgd", "--attack square"):
        attack(population(), preset(Away(Rank())))
    one = attack(population(), preset(Away(Rank()), SquareAttack(queries=20)))
    assert float(one.gain.mean()) > 0


@pytest.mark.parametrize(("count", "size", "expected"), [(257, 256, 129), (256, 256, 256), (3, 256, 3), (9, 4, 3)])
def test_even_batches(count, size, expected):
    assert even(count, size) == expected


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    among, chosen, folder = population(), preset(Toward()), tmp_path_factory.mktemp("kept")
    moved = attack(among, chosen)
    return among, chosen, moved, write_attack(among, chosen, moved, Store(folder), datetime.now(UTC)), folder


def test_what_is_kept_is_what_was_found(kept):
    among, _, moved, record, folder = kept
    saved = load_file(folder / "attack.safetensors")
    assert torch.equal(saved["attacked"], moved.attacked)
    assert torch.equal(saved["clean_codes"], moved.clean_codes)
    with safe_open(folder / "attack.safetensors", "pt") as file:
        assert tuple(json.loads(file.metadata()["ids"])) == moved.ids
    assert [one.id for one in record.moved] == list(among.images.ids)
    assert [one.target for one in record.moved] == [among.images.ids[row] for row in among.partners]
    displacement = torch.linalg.vector_norm(moved.codes - moved.clean_codes, dim=1)
    assert torch.allclose(torch.tensor([one.l2 for one in record.moved]), displacement)
    assert record.replay.passed
    assert record.batch_sizes is None
    assert record.settings["attack"] == "pgd:steps=2"
    assert record == type(record).model_validate_json((folder / "attack.json").read_text())


def test_files_hold_the_attacked_images_rounded(kept):
    from PIL import Image

    _, _, moved, record, folder = kept
    files = [folder / one.png for one in record.moved]
    assert len(set(files)) == 11
    levels = torch.tensor(list(Image.open(files[4]).tobytes())).reshape(8, 8)
    assert torch.equal(levels, (moved.attacked[4, 0] * 255).round().long())
    with torch.no_grad():
        displacement = float(torch.linalg.vector_norm(ENCODER(levels[None, None] / 255) - moved.clean_codes[4]))
    assert record.moved[4].l2_of_png == pytest.approx(displacement, rel=1e-3)
    norm = float((levels / 255 - moved.clean[4, 0]).abs().max())
    assert record.moved[4].norm_of_png == pytest.approx(norm, rel=1e-4)
    assert record.moved[4].png_in_ball == (norm <= 0.05)
    assert record.moved[4].png_is_clean is False
    sheet = Image.open(folder / "sheet.png")
    assert sheet.height > 8 * 150, "eight rows"


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (lambda saved: saved["attacked"].add_(2), {"in_range", "in_ball", "same_codes"}),
        (lambda saved: saved["clean"].zero_(), {"in_ball"}),
        (lambda saved: saved["attacked_codes"].mul_(1.1), {"same_codes"}),
    ],
)
def test_the_replay_is_awake(kept, tmp_path, spoil, broken):
    among, chosen, _, _, folder = kept
    saved = load_file(folder / "attack.safetensors")
    spoil(saved)
    save_file(saved, tmp_path / "spoilt.safetensors")
    again = replay(among, chosen, tmp_path / "spoilt.safetensors")
    assert {name for name in ("in_range", "in_ball", "same_codes") if not getattr(again, name)} == broken
    assert not again.passed


def test_inputs_that_are_no_images_have_no_pictures(tmp_path):
    from holdfast.core.encoder import Encoder
    from holdfast.core.images import Images

    rows = Images(torch.rand(6, 5), name="rows")
    flat = Encoder(torch.nn.Linear(5, 3), "flat", Domain((5,)))
    among, chosen = Population(flat, rows, RunSettings()), preset(Away())
    record = write_attack(among, chosen, attack(among, chosen), Store(tmp_path), datetime.now(UTC))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attack.json", "attack.safetensors"]
    assert (record.moved[0].png, record.moved[0].l2_of_png) == (None, None)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    among, chosen = Population(tiny_encoder(), tiny_images(4), RunSettings()), preset(Away())
    (tmp_path / "file").touch()
    with pytest.raises(HoldfastError, match="choose another --out"):
        write_attack(among, chosen, attack(among, chosen), Store(tmp_path / "file"), datetime.now(UTC))


def test_clean_pixels_of_eight_bits_are_kept_once_and_as_such(tmp_path):
    levels = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    among, preset = Population(ENCODER, Images(levels), RunSettings()), PRESETS["u-pgd"]
    wanted, store = AdversarialImages.of(preset, among), Store(tmp_path)
    among, rows, observed = Run(among.run, store).observe(wanted, among)
    assert "clean" not in observed
    moved = adversarial(among, wanted, rows, observed)
    assert torch.equal(moved.clean, levels / 255)
    record = write_attack(among, preset, moved, store, datetime.now(UTC))
    saved = load_file(tmp_path / "attack.safetensors")
    assert torch.equal(saved["clean_levels"], levels)
    assert "clean" not in saved
    assert record.replay.passed
    assert record.replay.largest_norm == pytest.approx(preset.ball.radius, rel=1e-5)
