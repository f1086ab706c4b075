"""Make the picture of the report in the documentation: ``python scripts/picture_of_page.py runs/demo/report.html FILE.png``.

Chromium opens the page without a window, as wide and high as the first screen. The picture's metadata name the version that
measured, which a test compares with the package's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from look_at_page import FLAGS, NAMES  # type: ignore[import-not-found]  # it lies in the same folder
from PIL import Image
from PIL.PngImagePlugin import PngInfo

SIZE = "1280,900"
COLOURS = 128
"""Of the picture: enough for text and bars, and a third of the bytes."""


def main() -> int:
    """Write the picture and return 1 if there is no browser or the page names no version."""
    page, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    version = re.search(r"Made by Holdfast ([\w.+-]+)", page.read_text("utf-8"))
    if browser is None or version is None:
        print("no browser: install chromium" if browser is None else f"{page} does not name one version of Holdfast")
        return 1
    with TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={folder}/profile",
            f"--window-size={SIZE}",
            f"--screenshot={shot}",
        ]
        subprocess.run([*command, page.as_uri()], capture_output=True, timeout=180, check=True)
        info = PngInfo()
        info.add_text("Software", f"Holdfast {version[1]}")
        with Image.open(shot) as image:
            image.convert("RGB").quantize(COLOURS).save(target, pnginfo=info, optimize=True)
    print(f"{target}: {target.stat().st_size:,} bytes, Holdfast {version[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
