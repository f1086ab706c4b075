"""``python:package.module:factory``: the encoder that your function returns, with its weights.

For encoders that come as a package, or whose weights have their own loader. The factory takes no arguments and returns an
``Encoder``, or an ``nn.Module`` whose inputs the reference states: ``python:mine:net?shape=3x224x224&mean=0.5&std=0.5``.
"""

from __future__ import annotations

from holdfast.core.encoder import Encoder
from holdfast.encoders.by_name import Options, split
from holdfast.encoders.loading.inputs import InputSettings, build, encoder_from

SOURCE = "python"


class Settings(InputSettings):
    """Settings of a reference to Python: the inputs of a module that does not state them."""


def load(name: str, options: Options) -> Encoder:
    """Return what the function ``name``, spelled ``package.module:factory``, builds."""
    factory, settings = split(name, Settings)
    flag = f"{SOURCE}:{factory}"
    return encoder_from(build(factory, flag), factory, flag, settings, options.size)
