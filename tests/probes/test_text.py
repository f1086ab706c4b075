"""The text probe against the libraries' own zero-shot logits, on tiny models with random weights, and its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.attacks.adaptive import AdaptiveAttack
from holdfast.core.balls import Linf
from holdfast.core.encoder import Encoder
from holdfast.core.errors import HoldfastError
from holdfast.core.images import Images
from holdfast.core.run_settings import RunSettings
from holdfast.encoders import load
from holdfast.encoders.loading.inputs import declare_missing_operators
from holdfast.encoders.trained import Card, architecture_of, write
from holdfast.measure.population import Population
from holdfast.measure.store import key_of
from holdfast.probes.base import Probe
from holdfast.probes.evaluations.probe_accuracy import ProbeAccuracy
from holdfast.probes.evaluations.probe_radius import ProbeRadius
from holdfast.probes.evaluations.robust_accuracy import RobustAccuracy
from holdfast.probes.probed_codes import Answers
from holdfast.probes.text import TextProbe
from holdfast.run.request import Request, planned
from tests import samples
from tests.encoders.test_trained import FACTS

declare_missing_operators()
transformers = pytest.importorskip("transformers")

NAMES = ("cat", "dog", "fox")
WORDS = ("a", "photo", "of", "drawing", "the", "my", *NAMES)
TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGES = {
    "do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.25],
    "resample": 3, "size": {"height": 16, "width": 16}, "do_center_crop": False,
}  # fmt: skip
LENGTH = 9
ATTACK = AdaptiveAttack(restarts=1, steps=5)


def tokenizer(inputs: list[str]) -> Any:
    """Words are tokens, between a beginning and an end; ``inputs`` are what the model is given."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: place for place, word in enumerate(["<pad>", "<unk>", "<bos>", "<eos>", *WORDS])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [(name, vocabulary[name]) for name in ("<bos>", "<eos>")]
    words.post_processor = tokenizers.processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", model_input_names=inputs
    )


def saved(folder: Path, kind: str, seed: int = 0) -> tuple[Any, Any]:
    """A tiny CLIP or SigLIP with its tokenizer, saved as a repository has them."""
    text = {**TINY, "vocab_size": 4 + len(WORDS), "max_position_embeddings": LENGTH}
    vision = {**TINY, "image_size": 16, "patch_size": 4}
    torch.manual_seed(seed)
    if kind == "clip":
        tokens = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
        config = transformers.CLIPConfig(text_config={**text, **tokens}, vision_config=vision, projection_dim=12)
        model, words = transformers.CLIPModel(config), tokenizer(["input_ids", "attention_mask"])
    else:
        config = transformers.SiglipConfig(text_config=text, vision_config=vision)
        model, words = transformers.SiglipModel(config), tokenizer(["input_ids"])
    model.eval().save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    return model, words


def pictures(count: int = 9, classes: tuple[str, ...] = NAMES, labels: Tensor | None = None) -> Images:
    pixels = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return Images(
        pixels, labels=torch.arange(count) % 3 if labels is None else labels, classes=classes, name="pictures"
    )


def written(folder: Path, *lines: str) -> str:
    path = folder / "prompts.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def population(encoder: Encoder, images: Images | None = None) -> Population:
    return Population(encoder, images or pictures(), RunSettings())


def normalised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(IMAGES[key])[:, None, None] for key in ("image_mean", "image_std"))
    return (pixels - mean) / std


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_scores_are_the_librarys_own_logits(tmp_path: Path, kind: str):
    model, words = saved(tmp_path, kind)
    texts = [f"a photo of a {name}" for name in NAMES]
    of = population(load(f"hf:{tmp_path}?pool=projected"))
    probe = of.learned(TextProbe(written(tmp_path, *(f"{n}: {t}" for n, t in zip(NAMES, texts, strict=True)))))
    with torch.no_grad():
        tokens = words(texts, padding="max_length", max_length=LENGTH, return_tensors="pt")
        expected = model(pixel_values=normalised(of.pixels(range(9))), **tokens).logits_per_image.double()
    expected = expected - getattr(model, "logit_bias", torch.zeros(())).detach()
    assert probe.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(probe.scores(of.codes), expected, rtol=1e-4, atol=1e-4)
    assert expected.std(1).min() > 1e-3, "vacuous fixture"


def test_several_prompts_of_a_class_are_one_direction(tmp_path: Path):
    """The mean of unit codes, as open_clip's zero-shot classifier takes it."""
    model, words = saved(tmp_path, "clip")
    of = population(load(f"hf:{tmp_path}?pool=projected"))
    probe = of.learned(TextProbe(written(tmp_path, "a photo of a {}", "# not this", "", "CAT : my cat", "the {}")))
    said = [["my cat", "a photo of a cat", "the cat"], ["a photo of a dog", "the dog"], ["a photo of a fox", "the fox"]]
    with torch.no_grad():
        for column, texts in enumerate(said):
            codes = model.get_text_features(**words(texts, padding=True, return_tensors="pt"))
            codes = (codes if isinstance(codes, Tensor) else codes.pooler_output).double()
            mean = torch.nn.functional.normalize(codes, dim=1).mean(0)
            angle = torch.nn.functional.cosine_similarity(of.codes.double(), mean[None])
            expected = model.logit_scale.exp().double() * angle
            torch.testing.assert_close(probe.scores(of.codes)[:, column], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def open_clip(tmp_path_factory):
    library = pytest.importorskip("open_clip", reason="open_clip_torch is not installed (extra 'clip')")
    folder = tmp_path_factory.mktemp("models")
    vision = {"image_size": 16, "layers": 1, "width": 8, "head_width": 4, "patch_size": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1}
    (folder / "tiny-texts.json").write_text(json.dumps({"embed_dim": 6, "vision_cfg": vision, "text_cfg": text}))
    library.add_model_config(folder)
    return library


def test_open_clip_scores_are_its_own_zero_shot_classifier(open_clip, tmp_path: Path):
    from safetensors.torch import save_file

    torch.manual_seed(3)
    model = open_clip.create_model("tiny-texts").eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    encoder = load(f"open_clip:tiny-texts?pretrained={tmp_path / 'weights.safetensors'}")
    of = population(encoder)
    probe = of.learned(TextProbe(written(tmp_path, "a photo of a {}", "a drawing of the {}")))
    templates = ["a photo of a {}", "a drawing of the {}"]
    weights = open_clip.build_zero_shot_classifier(model, open_clip.get_tokenizer("tiny-texts"), NAMES, templates)
    mean, std = torch.tensor(open_clip.OPENAI_DATASET_MEAN), torch.tensor(open_clip.OPENAI_DATASET_STD)
    with torch.no_grad():
        pixels = (of.pixels(range(9)) - mean[:, None, None]) / std[:, None, None]
        expected = model.logit_scale.exp() * model.encode_image(pixels, normalize=True) @ weights
    torch.testing.assert_close(probe.scores(of.codes), expected.double(), rtol=1e-4, atol=1e-4)
    assert encoder.texts is not None
    again = load("open_clip:tiny-texts?pretrained=false")
    assert again.texts is not None
    assert again.texts.fingerprint != encoder.texts.fingerprint
    without = load(f"open_clip:tiny-texts?pretrained={tmp_path / 'weights.safetensors'}&projection=false")
    with pytest.raises(
        HoldfastError, match="tiny-texts has no text tower beside its embeddings; the models of open_clip"
    ):
        population(without).learned(TextProbe(written(tmp_path, "a {}")))


def test_zero_shot_accuracy_clean_and_attacked_without_a_bank(tmp_path: Path):
    saved(tmp_path, "clip")
    probe = TextProbe(written(tmp_path, "a photo of a {}"))
    encoder, images = load(f"hf:{tmp_path}?pool=projected"), pictures(30)
    right = population(encoder, images).learned(probe).scores(population(encoder, images).codes).argmax(1)
    accuracy = ProbeAccuracy(probes=(probe,))(encoder, images)
    clean = accuracy.estimate("top1_accuracy", probe=str(probe)).value
    assert clean == pytest.approx(float((right == population(encoder, images).labels).double().mean()))
    robust = RobustAccuracy(balls=(Linf(0.2),), attacks=(ATTACK,), probes=(probe,))(encoder, images)
    kept = {
        aim: robust.estimate("robust_accuracy", attack=f"{ATTACK} at {aim}").value for aim in ("the probe", "the code")
    }
    assert kept["the probe"] < clean
    assert kept["the probe"] <= kept["the code"] <= clean
    radii = ProbeRadius(probes=(probe,), attack=ATTACK, fixed=(ATTACK,), samples=6)(encoder, images)
    assert radii.estimate("probe_radius").n == 6


def test_a_trained_encoder_keeps_the_texts_of_the_one_it_began_with(tmp_path: Path):
    saved(tmp_path, "clip")
    start = load(f"hf:{tmp_path}?pool=projected")
    write(tmp_path / "robust", start, Card.of(start, architecture_of(start), **FACTS))
    robust = load(f"trained:{tmp_path / 'robust'}")
    probe = TextProbe(written(tmp_path, "a {}"))
    first, second = (population(each).learned(probe) for each in (start, robust))
    torch.testing.assert_close(first.scores(population(start).codes), second.scores(population(robust).codes))


def test_the_command_line_asks_for_no_bank_where_texts_teach(tmp_path: Path):
    prompts = written(tmp_path, "a {}")
    for name in ("probe-accuracy", "robust-accuracy", "probe-radius"):
        settings = {name: {"probes": [f"text:{prompts}"]}}
        (evaluation,) = planned(Request(only=(name,), settings=settings))
        assert vars(evaluation)["probes"] == (TextProbe(prompts),)
        with pytest.raises(HoldfastError, match=f"there is no bank of images for {name} to learn from"):
            planned(Request(only=(name,), settings={name: {"probes": [f"text:{prompts}", "knn"]}}))
    everything = planned(Request(settings={"robust-accuracy": {"probes": [f"text:{prompts}"]}}))
    assert [e.name for e in everything if e.needs_bank] == ["robust-accuracy"]


def test_a_run_keeps_and_finds_zero_shot_results(tmp_path: Path):
    saved(tmp_path, "clip")
    np.savez(tmp_path / "x.npz", images=pictures().pixels(range(9)).numpy(), labels=np.arange(9) % 3)
    prompts = written(tmp_path, "0: a cat", "1: a dog", "2: a fox")
    asked: dict[str, Any] = {
        "only": "probe-accuracy", "settings": {"probe-accuracy": {"probes": [f"text:{prompts}"]}},
        "out": tmp_path / "run", "progress": False,
    }  # fmt: skip
    run = hf.evaluate(f"hf:{tmp_path}?pool=projected", str(tmp_path / "x.npz"), **asked)
    (before,) = run.results
    assert before.estimate("top1_accuracy").n == 9
    Path(prompts).write_text("0: a fox\n1: a dog\n2: a cat\n")
    (after,) = hf.evaluate(f"hf:{tmp_path}?pool=projected", str(tmp_path / "x.npz"), **asked).results
    assert after.settings["probes"] != before.settings["probes"], "other prompts were answered from the folder"


def test_keys_hold_prompts_text_weights_and_names_of_classes(tmp_path: Path):
    for name, seed in (("one", 0), ("two", 1)):
        (tmp_path / name).mkdir()
        saved(tmp_path / name, "clip", seed)
    # The same images' half with the other texts' half.
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(tmp_path / "one", tmp_path / "mixed")
    parts = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    mixed = {key: parts[key.startswith("text_")][key] for key in parts[0]}
    save_file(mixed, tmp_path / "mixed" / "model.safetensors", metadata={"format": "pt"})
    one, other = (load(f"it=hf:{tmp_path / name}?pool=projected") for name in ("one", "mixed"))
    assert one.fingerprint == other.fingerprint, "vacuous fixture"
    probe, images, run = TextProbe(written(tmp_path, "a {}")), pictures(), RunSettings()
    knn = Probe.read("knn")
    for make in (lambda p: p, lambda p: Answers(p, 5), lambda p: ProbeAccuracy(probes=(p,))):
        key = key_of(make(probe), one, images, run)
        assert key_of(make(probe), one, images, run) == key
        assert key_of(make(probe), other, images, run) != key
        assert key_of(make(probe), one, pictures(classes=("cat", "dog", "cow")), run) != key
        assert key_of(make(knn), other, images, run) == key_of(make(knn), one, images, run)
        other_prompts = TextProbe(written(tmp_path, "the {}"))
        assert key_of(make(other_prompts), one, images, run) != key
        written(tmp_path, "a {}")


def test_text_is_read_back_and_a_changed_file_is_noticed(tmp_path: Path):
    prompts = written(tmp_path, "a {}")
    probe = Probe.read(f"text:{prompts}")
    assert Probe.read(str(probe)) == probe == TextProbe(prompts)
    assert str(probe).startswith(f"text:{prompts},digest=")
    spelled = str(probe)
    written(tmp_path, "the {}")
    with pytest.raises(HoldfastError, match=r"have digest \w+ and no longer \w+; leave the digest out, or restore"):
        Probe.read(spelled)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "has no prompts; write one on each line"),
        (("# none",), "has no prompts"),
        (("a cat",), "line 1 of .* 'a cat', is said of no class; write 'cat: a cat', or {} where the name"),
        (("cat:",), "is said of no class"),
        (("cat: a cat", "a {}", "cat: a cat"), "has 'cat: a cat' twice, on lines 1 and 3; keep one"),
    ],
)
def test_files_of_prompts_that_say_nothing(tmp_path: Path, lines: tuple[str, ...], said: str):
    with pytest.raises(HoldfastError, match=said):
        TextProbe(written(tmp_path, *lines))


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(HoldfastError, match=r"there is no file of prompts '.*gone\.txt'; check the path"):
        TextProbe(str(tmp_path / "gone.txt"))
    with pytest.raises(HoldfastError, match="prompts in"):
        TextProbe(str(tmp_path))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HoldfastError, match="Name a text file in UTF-8"):
        TextProbe(str(tmp_path / "binary.txt"))
    with pytest.raises(HoldfastError, match=r"probe 'text' needs prompts, as in text:prompts\.txt"):
        Probe.read("text")


def test_labels_that_no_prompt_names_and_names_that_no_label_has(tmp_path: Path):
    saved(tmp_path, "clip")
    encoder = load(f"hf:{tmp_path}?pool=projected")
    with pytest.raises(HoldfastError, match=r"names 2 of the labels \(dog, fox\); add lines such as 'dog: a photo"):
        population(encoder).learned(TextProbe(written(tmp_path, "cat: a cat")))
    unlabelled = Images(pictures().pixels(range(9)))
    with pytest.raises(HoldfastError, match="this needs labels"):
        population(encoder, unlabelled).learned(TextProbe(written(tmp_path, "a {}")))
    numbered = pictures(classes=(), labels=torch.tensor([4, 7, 4]).repeat(3))
    by_number = population(encoder, numbered).learned(
        TextProbe(written(tmp_path, "7: a dog", "4: a cat", "cow: the fox"))
    )
    assert by_number.classes.tolist() == [4, 7, 8]
    assert "names 1 classes that the images do not have; they are answers like the others" in by_number.caution
    only_cats = pictures(labels=torch.zeros(9, dtype=torch.int64))
    shown = population(encoder, only_cats).learned(TextProbe(written(tmp_path, "cat: a cat", "fox: a fox")))
    assert (shown.classes.tolist(), shown.caution) == ([0, 2], "")


@pytest.mark.slow
def test_encoders_without_a_text_tower(tmp_path: Path):
    saved(tmp_path, "siglip")
    probe = TextProbe(written(tmp_path, "a {}"))
    for encoder in (load(f"hf:{tmp_path}?pool=pooler"), load(f"hf:{tmp_path}?pool=mean")):
        with pytest.raises(
            HoldfastError, match=r"has no text tower beside its embeddings; .* SigLIP of hf with \?pool=projected"
        ):
            population(encoder).learned(probe)
    vision = transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=16, patch_size=4))
    vision.save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    with pytest.raises(HoldfastError, match="pool=projected"):
        load(f"hf:{tmp_path / 'vit'}?pool=projected")
    for file in tmp_path.glob("token*.json"):
        file.unlink()
    with pytest.raises(HoldfastError, match="has no tokenizer that can be read"):
        population(load(f"hf:{tmp_path}?pool=projected")).learned(probe)
    labelled = Images(samples.digits(6).pixels(range(6)), labels=samples.classes(6))
    with pytest.raises(HoldfastError, match="digits-contrastive has no text tower"):
        ProbeAccuracy(probes=(probe,))(samples.builtin(), labelled)
