"""Going on from MoCo's checkpoints: the next steps are those of a program written by hand as its authors wrote theirs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import holdfast as hf
from holdfast.cli.app import run
from holdfast.commands.train import train
from holdfast.core.encoder import Domain, Encoder
from holdfast.core.errors import Conflict, HoldfastError, HoldfastWarning, OutOfRange, Unreadable
from holdfast.core.images import Images
from holdfast.encoders.architectures.resnet import ResNet18, ResNet50
from holdfast.training.learner import Batch, Setting
from holdfast.training.moco_checkpoint import MoCoCheckpoint
from holdfast.training.objectives.contrastive import MoCoV2, MoCoV2Learner, SimCLR
from holdfast.training.optimisers import SGD
from tests.training import tiny

WIDTH, DIM, KEYS, RATE = 6, 4, 16, 0.1
MOMENTUM, TEMPERATURE = 0.8, 0.3
OBJECTIVE = MoCoV2(temperature=TEMPERATURE, momentum=MOMENTUM, queue=KEYS, projection=DIM)
OPTIMISER = SGD(rate=RATE, weight_decay=1e-2, decay_all=True)


class Body(nn.Module):
    """A network of torchvision's kind: what its ``fc`` does not change is the embedding."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 5, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(5)
        self.layer1 = nn.Sequential(nn.Conv2d(5, WIDTH, 3, stride=2), nn.BatchNorm2d(WIDTH))
        self.fc: nn.Module = nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.layer1(torch.relu(self.bn1(self.conv1(x))))).mean(dim=(2, 3)))


class Oracle(nn.Module):
    """MoCo as in its authors' program, for one process: the key network moves first, and keys lie in columns."""

    def __init__(self, base: Callable[[int], Any] = Body, mlp: bool = True, keys: int = KEYS) -> None:
        super().__init__()
        self.encoder_q, self.encoder_k = base(DIM), base(DIM)
        if mlp:
            wide = self.encoder_q.fc.weight.shape[1]
            for side in (self.encoder_q, self.encoder_k):
                side.fc = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), side.fc)
        self.encoder_k.load_state_dict(self.encoder_q.state_dict())
        self.encoder_k.requires_grad_(False)
        self.queue: Tensor
        self.queue_ptr: Tensor
        self.register_buffer("queue", normalize(torch.randn(DIM, keys), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        for query, key in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            key.copy_(key * MOMENTUM + query * (1 - MOMENTUM))

    def forward(self, im_q: Tensor, im_k: Tensor, attacked: Tensor | None = None) -> Tensor:
        q = normalize(self.encoder_q(im_q), dim=1)
        if attacked is not None:
            q = torch.cat([q, normalize(self.encoder_q(attacked), dim=1)])
        with torch.no_grad():
            self.follow()
            k = normalize(self.encoder_k(im_k), dim=1)
        twice = k if attacked is None else torch.cat([k, k])
        logits = torch.cat([(q * twice).sum(1, keepdim=True), q @ self.queue.clone()], dim=1) / TEMPERATURE
        place = int(self.queue_ptr)
        self.queue[:, place : place + len(k)] = k.T
        self.queue_ptr[0] = (place + len(k)) % self.queue.shape[1]
        return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


class Authors:
    """Oracle and optimiser, as ``main_moco.py`` has them."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(3)
        self.moco = Oracle(**settings).double().train()
        self.sgd = torch.optim.SGD(self.moco.parameters(), RATE, momentum=0.9, weight_decay=1e-2)

    def step(self, batch: Batch) -> Tensor:
        loss = self.moco(batch.views[0], batch.views[1], batch.attacked)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        return loss.detach()

    def content(self) -> dict[str, Any]:
        state = {f"module.{name}": value for name, value in self.moco.state_dict().items()}
        return {"epoch": 200, "arch": "resnet50", "state_dict": state, "optimizer": self.sgd.state_dict()}


def data(seed: int, attacked: bool = False) -> Batch:
    return tiny.batch(OBJECTIVE, seed=seed, dtype=torch.float64, attacked=attacked)


def prepared(**settings: Any) -> Authors:
    """A program after three steps, whose key network, queue, pointer and momentum are no longer those of the start."""
    authors = Authors(**settings)
    for seed in range(3):
        authors.step(data(seed))
    return authors


def written(content: dict[str, Any], folder: Path, **how: Any) -> Path:
    path = folder / "checkpoint_0199.pth.tar"
    torch.save(content, path, **how)
    return path


def encoder_alone() -> nn.Module:
    torch.manual_seed(0)
    body = Body(DIM)
    body.fc = nn.Identity()
    return body.double()


def filled(path: Path, objective: MoCoV2 = OBJECTIVE) -> tuple[MoCoV2Learner, torch.optim.Optimizer]:
    learner = objective.learner(encoder_alone(), Setting(tiny.DOMAIN, WIDTH, 64, 0, tiny.IMAGES)).double().train()
    assert isinstance(learner, MoCoV2Learner)
    optimiser = OPTIMISER.build(learner.parameters())
    checkpoint = MoCoCheckpoint.read(path)
    checkpoint.fill(learner)
    checkpoint.continue_momentum(learner, optimiser)
    return learner, optimiser


def assert_equal_networks(learner: MoCoV2Learner, authors: Authors) -> None:
    theirs = copy.deepcopy(authors.moco)
    theirs.follow()  # which theirs does at the beginning of the next step
    for ours, side in ((learner.network, theirs.encoder_q), (learner.key_network, theirs.encoder_k)):
        expected = [*side.state_dict().values()]
        found = [*ours.state_dict().values()]
        assert len(found) == len(expected) > 10
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mlp", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize("attacked", [False, True])
@pytest.mark.parametrize("zipped", [True, False])
def test_the_next_steps_are_those_of_the_authors_program(
    mlp: bool, attacked: bool, zipped: bool, tmp_path: Path
) -> None:
    authors = prepared(mlp=mlp)
    path = written(authors.content(), tmp_path, _use_new_zipfile_serialization=zipped)
    objective = OBJECTIVE if mlp else MoCoV2(TEMPERATURE, MOMENTUM, KEYS, projection=DIM, linear=True)
    learner, optimiser = filled(path, objective)
    assert int(learner.oldest) == 3 * tiny.IMAGES % KEYS != 0
    assert_equal_networks(learner, authors)
    for seed in range(10, 13):
        batch = data(seed, attacked)
        loss, expected = tiny.step(learner, optimiser, batch, 0.5), authors.step(batch)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(learner.queue, authors.moco.queue.T, rtol=1e-10, atol=1e-12)
        assert int(learner.oldest) == int(authors.moco.queue_ptr)
        assert_equal_networks(learner, authors)


def test_momentum_key_network_and_queue_are_each_needed_for_that(tmp_path: Path) -> None:
    """The comparison above is awake: without any one of the parts the next loss or the one after is another."""
    batches = [data(seed) for seed in (10, 11)]

    def losses(content: dict[str, Any]) -> list[float]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HoldfastWarning)
            learner, optimiser = filled(written(content, tmp_path))
        return [float(tiny.step(learner, optimiser, batch, 0.5)) for batch in batches]

    whole = prepared().content()
    expected = losses(whole)
    parts = {"encoder_k": "module.encoder_k.", "queue": "module.queue"}
    for beginning in parts.values():
        stripped = {key: value for key, value in whole["state_dict"].items() if not key.startswith(beginning)}
        assert losses({**whole, "state_dict": stripped})[0] != pytest.approx(expected[0], rel=1e-6)
    without = losses({key: value for key, value in whole.items() if key != "optimizer"})
    assert without[0] == pytest.approx(expected[0], rel=1e-12)
    assert without[1] != pytest.approx(expected[1], rel=1e-6)


def test_a_stripped_file_starts_afresh_what_it_lacks_and_says_so(tmp_path: Path) -> None:
    """As the authors of the fine-tuning do with the published file: keys are made by a copy of the query network."""
    content = prepared().content()
    state = {key: value for key, value in content["state_dict"].items() if "encoder_q" in key}
    with pytest.warns(HoldfastWarning) as warned:
        learner, optimiser = filled(written({"epoch": 200, "arch": "resnet50", "state_dict": state}, tmp_path))
    assert all(word in str(warned[0].message) for word in ("key network", "queue", "momentum"))
    for query, key in zip(learner.network.parameters(), learner.key_network.parameters(), strict=True):
        assert torch.equal(query, key)
        assert query is not key
    assert not optimiser.state_dict()["state"]
    assert int(learner.oldest) == 0


def test_addresses_of_weights_in_the_optimiser_of_an_old_torch(tmp_path: Path) -> None:
    authors = prepared()
    content = authors.content()
    of = {number: 140_000_000_000_000 + 64 * number for number in content["optimizer"]["param_groups"][0]["params"]}
    old = copy.deepcopy(content["optimizer"])
    old["param_groups"][0]["params"] = [*of.values()]
    old["state"] = {of[number]: state for number, state in old["state"].items()}
    learner, optimiser = filled(written({**content, "optimizer": old}, tmp_path))
    batch = data(10)
    tiny.step(learner, optimiser, batch, 0.5)
    authors.step(batch)
    assert_equal_networks(learner, authors)


class Object:
    pass


def changed(change: str) -> dict[str, Any]:
    content = prepared().content()
    state, optimiser = content["state_dict"], content["optimizer"]
    if change == "no state dict":
        del content["state_dict"]
    elif change == "another program":
        content["state_dict"] = {f"backbone.{key}": value for key, value in state.items()}
    elif change == "no pointer":
        del state["module.queue_ptr"]
    elif change == "pointer":
        state["module.queue_ptr"][0] = KEYS
    elif change == "missing":
        del state["module.encoder_q.bn1.weight"]
    elif change == "missing in k":
        del state["module.encoder_k.fc.0.bias"]
    elif change == "shape":
        state["module.encoder_q.conv1.weight"] = torch.zeros(7, 3, 3, 3)
    elif change == "head":
        state["module.encoder_q.fc.2.weight"] = torch.zeros(9, WIDTH)
    elif change == "no head":
        content["state_dict"] = {key: value for key, value in state.items() if ".fc." not in key}
    elif change == "momentum of others":
        optimiser["state"][0]["momentum_buffer"] = torch.zeros(2)
    elif change == "half the momentum":
        del optimiser["state"][2]
    elif change == "groups":
        optimiser["param_groups"] *= 2
    elif change == "objects":
        content["args"] = Object()
    return content


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ("no state dict", Unreadable, ["state_dict"]),
        ("another program", Unreadable, ["module.encoder_q."]),
        ("no pointer", Unreadable, ["queue_ptr"]),
        ("pointer", OutOfRange, ["queue_ptr", str(KEYS)]),
        ("missing", HoldfastError, ["encoder_q", "bn1.weight", "architecture=resnet50"]),
        ("missing in k", HoldfastError, ["encoder_k", "0.bias"]),
        ("shape", HoldfastError, ["conv1.weight", "(7, 3, 3, 3)", "(5, 3, 3, 3)"]),
        ("head", HoldfastError, ["2.weight", f"(9, {WIDTH})", f"({DIM}, {WIDTH})"]),
        ("no head", OutOfRange, ["0 linear layers"]),
        ("momentum of others", Unreadable, ["optimizer"]),
        ("half the momentum", Unreadable, ["optimizer"]),
        ("groups", Unreadable, ["optimizer"]),
        ("objects", HoldfastError, ["Object"]),
    ],
)
def test_what_is_missing_or_has_another_shape_is_named(
    change: str, kind: type[HoldfastError], said: list[str], tmp_path: Path
) -> None:
    path = written(changed(change), tmp_path)
    with pytest.raises(kind) as caught:
        filled(path)
    assert all(word in str(caught.value) for word in said), str(caught.value)


def test_objectives_and_optimisers_that_do_not_fit(tmp_path: Path) -> None:
    path = written(prepared().content(), tmp_path)
    with pytest.raises(OutOfRange, match=f"queue={KEYS}"):
        filled(path, MoCoV2(queue=2 * KEYS, projection=DIM))
    with pytest.raises(OutOfRange, match="linear=false"):
        filled(path, MoCoV2(queue=KEYS, projection=DIM, linear=True))
    checkpoint = MoCoCheckpoint.read(path)
    with pytest.raises(Conflict, match="objective moco-v2"):
        checkpoint.fill(tiny.learner(tiny.small(SimCLR())))
    learner, _ = filled(path)
    with pytest.raises(Conflict, match="momentum"):
        checkpoint.continue_momentum(learner, torch.optim.Adam(learner.parameters()))
    with pytest.raises(Conflict, match="linear=true and hidden=4"):
        MoCoV2(linear=True, hidden=4)


RECIPE: dict[str, Any] = {
    "objective": f"moco-v2:temperature={TEMPERATURE},momentum={MOMENTUM},queue={KEYS},projection={DIM}",
    "architecture": "small-resnet",
    "optimiser": f"sgd:rate={RATE},weight_decay=0.01,decay_all=true",
    "schedule": "constant",
    "batch": tiny.IMAGES,
    "epochs": 1,
    "precision": "float64",
    "mode": "train",
}


def test_a_whole_training_is_that_of_the_program(tmp_path: Path) -> None:
    """One step from the file by ``train``; its weights are those of the program, whatever the order of the images."""
    authors = prepared()
    path = written(authors.content(), tmp_path)
    images = Images(torch.rand(tiny.IMAGES, *tiny.DOMAIN.shape, generator=torch.Generator().manual_seed(5)))
    start = Encoder(encoder_alone().float().eval(), "body", tiny.DOMAIN)
    trained = train(RECIPE, images, start=start, moco=path, out=tmp_path / "made", progress=False)
    pixels = images.pixels(range(tiny.IMAGES)).double()
    before = copy.deepcopy(authors.moco.encoder_q).eval().requires_grad_(False)
    batch = data(0)
    authors.step(Batch(batch.rows, pixels, (pixels, pixels), None, batch.noise))
    after = copy.deepcopy(authors.moco.encoder_q).eval()
    before.fc = after.fc = nn.Identity()
    expected = after(pixels).float()
    torch.testing.assert_close(trained(pixels.float()), expected, rtol=1e-4, atol=1e-6)
    assert float((before(pixels).float() - expected).abs().max()) > 1e-3, "vacuous: the step changed nothing"
    again = hf.load_encoder(f"trained:{tmp_path / 'made'}", arch="tests.training.test_moco_checkpoint:body")
    assert torch.equal(again(pixels.float()), trained(pixels.float()))

    other = prepared()
    other.step(data(99))
    path = written(other.content(), tmp_path)
    with pytest.raises(HoldfastError, match="moco was"):
        train(RECIPE, images, start=start, moco=path, out=tmp_path / "made", progress=False)


def body() -> nn.Module:
    """The network without its head, for ``--arch``."""
    made = encoder_alone().float()
    made.domain = tiny.DOMAIN  # type: ignore[assignment]
    return made


def test_the_command_goes_on_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a rate of almost 0 the encoder that comes out is the one of the file."""
    torch.manual_seed(1)
    oracle = Oracle(base=small_resnet)
    state = {f"module.{name}": value for name, value in oracle.state_dict().items()}
    path = written({"epoch": 1, "arch": "resnet18", "state_dict": state}, tmp_path)
    settings = [
        "objective=" + RECIPE["objective"],
        "optimiser=sgd:rate=1e-9",
        "augmentation=none",
        "adversary=untargeted",
    ]
    chosen = [part for setting in [*settings, "mode=eval", "epochs=1", "batch=8"] for part in ("--set", setting)]
    command = ["train", "moco-v2-untar-imagenet", "--images", "builtin:digits-train", "--limit", "16", "--size", "8"]
    sizes = ["--set", "architecture=resnet18:width=4", "--set", "native=false", "--channels", "3"]
    out = tmp_path / "made"
    assert run([*command, *sizes, *chosen, "--moco", str(path), "--out", str(out)]) == 0
    assert "trained:" in capsys.readouterr().out
    pixels = torch.rand(4, 3, 8, 8)
    oracle.encoder_q.fc = nn.Identity()
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    found = hf.load_encoder(f"trained:{out}")(pixels)
    torch.testing.assert_close(found, oracle.encoder_q.eval()((pixels - mean) / std), rtol=1e-4, atol=1e-5)


def small_resnet(classes: int) -> nn.Module:
    return with_head(ResNet18(width=4).build(Domain((3, 8, 8))), 32, classes)


def with_head(network: nn.Module, wide: int, classes: int) -> nn.Module:
    assert isinstance(network, nn.Sequential)
    network.add_module("fc", nn.Linear(wide, classes))
    return network


@pytest.mark.slow  # two networks of 100 MB
def test_a_file_of_resnet50_by_torchvision(tmp_path: Path) -> None:
    """Names and shapes are those of torchvision's network, from which the authors build theirs."""
    from holdfast.encoders.loading.inputs import declare_missing_operators

    declare_missing_operators()
    models = pytest.importorskip("torchvision").models
    torch.manual_seed(0)
    oracle = Oracle(base=lambda classes: models.resnet50(num_classes=classes), keys=16)
    state = {f"module.{name}": value for name, value in oracle.state_dict().items()}
    optimiser = torch.optim.SGD(oracle.parameters(), 0.1, momentum=0.9)
    oracle.train()(torch.rand(4, 3, 64, 64), torch.rand(4, 3, 64, 64)).backward()
    optimiser.step()
    content = {"epoch": 1, "arch": "resnet50", "state_dict": state, "optimizer": optimiser.state_dict()}
    path = written(content, tmp_path)
    domain = Domain((3, 64, 64))
    learner = OBJECTIVE.learner(ResNet50().build(domain), Setting(domain, 2048, 64, 0, 4))
    built = OPTIMISER.build(learner.parameters())
    checkpoint = MoCoCheckpoint.read(path)
    checkpoint.fill(learner)
    checkpoint.continue_momentum(learner, built)
    oracle.encoder_q.fc = nn.Identity()
    pixels = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(
            learner.encoder.eval()(pixels), oracle.encoder_q.eval()(pixels), rtol=1e-4, atol=1e-5
        )
    of = {id(weight): state["momentum_buffer"] for weight, state in built.state.items()}
    for (name, ours), theirs in zip(learner.encoder.named_parameters(), oracle.encoder_q.parameters(), strict=True):
        assert torch.equal(of[id(ours)], optimiser.state[theirs]["momentum_buffer"]), name
