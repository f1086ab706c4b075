"""Look at a page in a real browser: ``python scripts/look_at_page.py runs/demo/report.html``.

Chromium opens it without a window at widths of a telephone and of a desk. The page is wrong if its console says anything
of an error, if it loads anything from elsewhere, or if it is wider than the window. Where there is no Chromium this says
so, and nothing is checked.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

WIDTHS = (390, 1280)
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"),
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe id="page" src="{page}" style="border:0;width:{width}px;height:900px"></iframe>
<pre id="seen"></pre><script>
addEventListener("load", () => {{
  const page = document.getElementById("page").contentDocument;
  const wide = page ? page.documentElement.scrollWidth : -1;
  const loaded = page ? page.defaultView.performance.getEntriesByType("resource").map(entry => entry.name) : [];
  const named = page ? [...page.querySelectorAll("[src], link[href]")].map(part => part.src || part.href) : [];
  document.getElementById("seen").textContent = JSON.stringify([wide, [...loaded, ...named]
    .filter(address => !address.startsWith("data:"))]);
}});</script>"""


def main() -> int:
    """Print what is wrong with the page and return 1 if anything is."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        print("no browser: chromium is not installed, so the page was not looked at")
        return 0
    page = Path(sys.argv[1]).resolve()
    wrong = [sentence for width in WIDTHS for sentence in looked_at(browser, page, width)]
    print("\n".join(wrong) or f"{page.name} is sound at {' and '.join(map(str, WIDTHS))} pixels")
    return 1 if wrong else 0


def looked_at(browser: str, page: Path, width: int) -> list[str]:
    """Return what is wrong with ``page`` in a window of this ``width``."""
    with TemporaryDirectory() as folder:
        frame = Path(folder, "frame.html")
        frame.write_text(FRAME.format(page=page.as_uri(), width=width))
        command = [browser, *FLAGS, f"--user-data-dir={folder}/profile", "--allow-file-access-from-files"]
        command += [f"--window-size={max(width, 500)},900", "--virtual-time-budget=8000", "--dump-dom", frame.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    seen = re.search(r'<pre id="seen">\[(-?\d+),\[(.*?)\]\]</pre>', done.stdout)
    if seen is None or int(seen[1]) < 0:
        return [f"{width} px: the page could not be looked at: {done.stderr.strip()[-500:]}"]
    wrong = [f"{width} px: console: {line}" for line in done.stderr.splitlines() if ":CONSOLE" in line]
    if int(seen[1]) > width:
        wrong.append(f"{width} px: the page is {seen[1]} pixels wide")
    return wrong + ([f"{width} px: loads {seen[2]}"] if seen[2] else [])


if __name__ == "__main__":
    sys.exit(main())
