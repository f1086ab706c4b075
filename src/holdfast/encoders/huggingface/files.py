"""A Hugging Face model as its files have it: safetensors alone, and what they lack is told."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.core.errors import HoldfastError
from holdfast.encoders.loading.reference import Options, first_line, require
from holdfast.encoders.loading.torchvision_operators import declare_missing_operators


def architecture(repository: str, revision: str | None, options: Options) -> str:
    """Return the class of transformers that the weights were saved from, empty if the configuration names none."""
    declare_missing_operators()
    transformers = require("transformers", "huggingface")
    try:
        config = transformers.AutoConfig.from_pretrained(
            repository, revision=revision, trust_remote_code=options.trust_remote_code
        )
    except Exception:  # loading the model tells what is wrong
        return ""
    return str((getattr(config, "architectures", None) or [""])[0])


def read_model(
    repository: str, revision: str | None, options: Options, kind: str = "AutoModel"
) -> tuple[Any, dict[str, Any]]:
    """Return the model, of the class ``kind`` of transformers, and the report of which weights the files lack."""
    declare_missing_operators()
    transformers = require("transformers", "huggingface")
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # its table of missing weights becomes one error of ours
    try:
        model, report = getattr(transformers, kind).from_pretrained(
            repository,
            revision=revision,
            use_safetensors=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            dtype=torch.float32,
        )
    except Exception as error:  # the hub's clients raise errors of many libraries
        advice = "check the name, the network and that it holds model.safetensors"
        if "trust_remote_code" in str(error):
            advice = "it runs code of its own: read that code, then pass --trust-remote-code"
        raise HoldfastError(f"cannot load {repository!r}: {first_line(error)}; {advice}") from error
    finally:
        logging.set_verbosity(before)
    for part in model.modules():
        if hasattr(part, "name_or_path"):  # else the folder would be part of the fingerprint
            part.name_or_path = part.config._name_or_path = ""
    return model, report
