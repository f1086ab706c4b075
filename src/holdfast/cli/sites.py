"""``holdfast sites``: write the map that takes the site out of embeddings."""

from __future__ import annotations

from holdfast.cli import flags
from holdfast.cli.flags import flag
from holdfast.cli.terminal import show_result
from holdfast.core.options import INPUT, MEASURED, OUTPUT, LocalOptions


@flags.options(LocalOptions, "sites")
def command(
    encoder: flags.Encoder,
    images: flags.Images[str | None] = None,
    tags: str = flag(..., "CSV or JSON file of sites: id,site or id,site,group.", INPUT, "FILE"),
    repair: str = flag("combat", "Fit this map: centre, whiten or combat.", MEASURED, "NAME"),
    samples: int = flag(2000, "Fit to one half of N images, measure the other.", MEASURED, "N"),
    map: str | None = flag(None, "Write the map to this .safetensors file.", OUTPUT, "FILE"),
    *,
    options: LocalOptions,
) -> int:
    """Fit the map that takes the site out of embeddings, and measure it on held-out images.

    holdfast sites timm:resnet50 --images 'photos?labels=folders' --tags sites.csv --map map.safetensors
    """
    given = flags.keywords(locals())
    from holdfast.commands.sites import sites  # loaded here, because it needs torch

    repaired = sites(**given)
    show_result(repaired.result)
    if map:
        print(f"Map: {map}")
    if options["out"]:
        print(f"Report: {repaired.run.report()}")
    return int(repaired.result.planned is not None)
