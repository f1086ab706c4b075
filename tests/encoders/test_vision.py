"""timm and torchvision for real, with random weights: what comes out is what the source itself computes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast.core.errors import HoldfastError
from holdfast.encoders import Options, load
from holdfast.encoders.baseline import random_init
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.torchvision import without_head
from tests.facts import refused
from tests.marks import rest_slow

declare_missing_operators()
timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")


def seeded(build) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().eval()


def normalised(pixels, mean, std):
    return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def test_timm_codes_are_the_models_own_after_its_normalisation():
    encoder = load("timm:resnet18.a1_in1k?pretrained=false", Options(size=32))
    model = seeded(lambda: timm.create_model("resnet18.a1_in1k", num_classes=0))
    pixels = torch.rand(2, 3, 32, 32)
    expected = model(normalised(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(encoder(pixels), expected, atol=1e-5)


def test_timm_transformer_keeps_its_recipe_and_takes_another_size():
    encoder = load("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k?pretrained=false")
    assert encoder.inputs["pooling"] == "token, by timm"
    assert encoder.domain.shape == (3, 224, 224)
    assert encoder.inputs["resizing"].endswith("bicubic")
    assert torch.allclose(encoder.module.get_buffer("mean").flatten(), torch.tensor(0.5))
    small = load("timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k?pretrained=false", Options(size=32))
    assert small(torch.rand(2, 3, 32, 32)).shape == (2, 192)


def test_timm_transformers_give_their_tokens_by_name():
    name, pixels = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", torch.rand(2, 3, 32, 32)
    model = seeded(lambda: timm.create_model(name, num_classes=0, img_size=32))
    with torch.no_grad():
        tokens = getattr(model, "forward_features")(normalised(pixels, (0.5,) * 3, (0.5,) * 3))  # noqa: B009
    expected = {
        "tokens=patch": tokens[:, 1:].flatten(1), "pool=cls": tokens[:, 0], "pool=mean": tokens[:, 1:].mean(1)
    }  # fmt: skip
    for setting, codes in expected.items():
        encoder = load(f"timm:{name}?pretrained=false&{setting}", Options(size=32))
        assert torch.allclose(encoder(pixels), codes, atol=1e-5), setting
        assert encoder.tokens == (4 if setting == "tokens=patch" else 1)
    with refused(HoldfastError, "'resnet10t'", "transformer", "patches"):
        load("timm:resnet10t?pretrained=false&tokens=patch", Options(size=32))


@pytest.fixture(scope="module")
def whole():
    """A network with its classifier, as timm saves it."""
    return seeded(lambda: timm.create_model("resnet10t", num_classes=7))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("ending", [".safetensors", ".pt"])
def test_timm_reads_weights_from_a_file(whole, tmp_path, ending, prefix):
    weights = {prefix + name: value for name, value in whole.state_dict().items()}
    (save_file if ending == ".safetensors" else torch.save)(weights, tmp_path / f"mine{ending}")
    encoder = load(f"timm:resnet10t?weights={tmp_path}/mine{ending}&prefix={prefix}", Options(size=32))
    pixels = torch.rand(2, 3, 32, 32)
    config = timm.data.resolve_model_data_config(whole)
    codes = whole.forward_head(
        whole.forward_features(normalised(pixels, config["mean"], config["std"])), pre_logits=True
    )
    assert torch.allclose(encoder(pixels), codes, atol=1e-5)
    network = load(f"timm:resnet10t?weights={tmp_path}/gone.pt&pretrained=false", Options(size=32))
    assert network.fingerprint != encoder.fingerprint  # alone, as the place of weights that training made


def test_timm_reads_a_folder_that_it_saved(whole, tmp_path):
    hub = pytest.importorskip("timm.models._hub")
    hub.save_for_hf(whole, tmp_path / "folder", safe_serialization=True)
    encoder = load(f"timm:local-dir:{tmp_path}/folder", Options(size=32))
    save_file(whole.state_dict(), tmp_path / "mine.safetensors")
    file = load(f"timm:resnet10t?weights={tmp_path}/mine.safetensors", Options(size=32))
    pixels = torch.rand(2, 3, 32, 32)
    assert torch.equal(encoder(pixels), file(pixels))
    assert encoder.name == "folder"
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "folder" / "other.safetensors")
    with pytest.raises(
        HoldfastError, match=r"neither model\.safetensors nor pytorch_model\.bin; say which .*weights=FILE"
    ):
        load(f"timm:local-dir:{tmp_path}/folder")
    named = load(f"timm:local-dir:{tmp_path}/folder?weights={tmp_path}/folder/other.safetensors", Options(size=32))
    assert torch.equal(encoder(pixels), named(pixels))
    with pytest.raises(HoldfastError, match=r"has no config\.json"):
        load(f"timm:local-dir:{tmp_path}/nowhere")


def test_timm_refuses_weights_that_do_not_fit(whole, tmp_path):
    weights = whole.state_dict()
    save_file({name: value for name, value in weights.items() if name != "bn1.weight"}, tmp_path / "few.safetensors")
    with refused(HoldfastError, "1", "missing", "belong"):
        load(f"timm:resnet10t?weights={tmp_path}/few.safetensors")
    save_file({**weights, "queue.x": torch.zeros(1)}, tmp_path / "many.safetensors")
    with refused(HoldfastError, "1", "drop=queue", "unexpected"):
        load(f"timm:resnet10t?weights={tmp_path}/many.safetensors")
    load(f"timm:resnet10t?weights={tmp_path}/many.safetensors&drop=queue.")
    with pytest.raises(HoldfastError, match=r"needs \?weights=FILE"):
        load("timm:resnet10t?drop=queue.")
    with refused(HoldfastError, "no file"):
        load(f"timm:resnet10t?weights={tmp_path}/none.pt")


@pytest.mark.parametrize(
    "reference", rest_slow(["timm:resnet18", "torchvision:resnet18", "torchvision:resnet18@IMAGENET1K_V1"])
)
def test_loading_twice_gives_equal_fingerprints_and_another_seed_another(reference):
    first = load(f"{reference}?pretrained=false")
    assert load(f"{reference}?pretrained=false").fingerprint == first.fingerprint
    assert load(f"{reference}?pretrained=false&seed=1").fingerprint != first.fingerprint
    assert first.source == f"{reference}?pretrained=false"


def test_torchvision_codes_are_what_the_classifier_reads():
    encoder = load("torchvision:resnet18?pretrained=false", Options(size=32))
    model = seeded(lambda: torchvision.models.resnet18(weights=None))
    seen = []
    model.get_submodule("fc").register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        model(normalised(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(encoder(pixels), seen[0], atol=1e-5)


def test_torchvision_geometry_is_the_recipe_of_the_weights():
    first = load("torchvision:resnet50@IMAGENET1K_V1?pretrained=false")
    second = load("torchvision:resnet50@IMAGENET1K_V2?pretrained=false")
    assert "resize_size 256" in first.inputs["resizing"]
    assert "resize_size 232" in second.inputs["resizing"]


HEADS = {"mobilenet_v3_small": 1024, "shufflenet_v2_x0_5": 1024, "densenet121": 1024, "regnet_y_400mf": 440}


@pytest.mark.parametrize("name", HEADS)
def test_heads_of_every_family_are_cut_by_one_rule(name):
    encoder = load(f"torchvision:{name}?pretrained=false", Options(size=64))
    assert encoder(torch.rand(1, 3, 64, 64)).shape == (1, HEADS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg11", "efficientnet_b0", "convnext_tiny", "swin_t", "vit_b_16", "inception_v3"])
def test_heads_of_heavy_families_are_cut_too(name):
    encoder = load(f"torchvision:{name}?pretrained=false")
    pixels = torch.rand(1, *encoder.domain.shape)
    model = seeded(lambda: torchvision.models.get_model(name, weights=None))
    cut = without_head(seeded(lambda: torchvision.models.get_model(name, weights=None)), name, 1000)
    with torch.no_grad():
        codes = cut(pixels)
        head = [part for part in model.modules() if isinstance(part, nn.Linear) and part.out_features == 1000][-1]
        assert torch.allclose(head(codes), model(pixels), atol=1e-4)
    assert encoder(pixels).shape == codes.shape


LOADED = (
    "import torch; from holdfast.encoders import Options, load; load({!r}, Options(size=32))(torch.rand(2, 3, 32, 32))"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "holdfast", "doctor", "timm:test_resnet?pretrained=false", "--size", "32"],
        # The rest of what doctor does knows no library, and takes most of its time with a network of this size.
        ["-c", LOADED.format("torchvision:resnet18?pretrained=false")],
    ],
    ids=["timm", "torchvision"],
)
def test_a_fresh_process_loads_them_in_silence(command):
    """Beside whichever torchvision is installed: nothing was imported or declared before."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_random_baseline_of_a_convolutional_network():
    encoder = load("timm:resnet18?pretrained=false", Options(size=32))
    fresh = random_init(encoder, seed=5)
    assert fresh.fingerprint != encoder.fingerprint
    assert fresh(torch.rand(1, 3, 32, 32)).shape == (1, 512)


@pytest.mark.parametrize(
    ("reference", "size", "said"),
    [
        ("timm:resnte18", None, "nearest: resnet18"),
        ("timm:resnet18.nonsense?pretrained=false", None, "check the tag"),
        ("timm:resnet18?pretraned=false", None, "Did you mean 'pretrained'"),
        ("torchvision:resnet19", None, "Did you mean"),
        ("torchvision:resnet18@IMAGENET_V1", None, "Did you mean 'IMAGENET1K_V1'"),
        ("torchvision:squeezenet1_0?pretrained=false", None, "head is unknown"),
        ("torchvision:vit_b_32?pretrained=false", 32, "--size.*224.*got 32"),
    ],
)
def test_wrong_names_say_what_to_do(reference, size, said):
    with pytest.raises(HoldfastError, match=said):
        load(reference, Options(size=size))
