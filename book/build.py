"""Build the site into _build/html: `python book/build.py`.

Fetches the scripts that the site serves itself, then runs Jupyter Book with warnings as errors.
Notebooks run only when they, lib/, data/ or the pinned versions have changed.
"""

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from firsttoken.live import assets

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
BUILD = ROOT / "_build"
NODE = BUILD / "node"
STATIC = BUILD / "static"
CONFIG = BUILD / "_config.yml"
CACHE = BUILD / ".jupyter_cache"
# What a notebook's outputs depend on, beside the notebook itself.
INPUTS = ("lib", "data", "constraints.txt")


def main() -> int:
    BUILD.mkdir(exist_ok=True)
    fetch_scripts()
    write_live()
    # On a new machine this builds the font cache; in a notebook its notice would be a warning.
    importlib.import_module("matplotlib.font_manager")
    drop_stale_outputs()
    write_config()
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", ".", "-W", "-n", "--keep-going"]
    command += ["--toc", "book/_toc.yml", "--config", str(CONFIG.relative_to(ROOT))]
    # Kernels must find this interpreter's packages, and explore() must draw for the site.
    # One thread: beside other programs, several wait for each other a hundred times as long.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "FIRSTTOKEN_SITE": "1"}
    environment["PYTHONHASHSEED"] = "0"
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def fetch_scripts() -> None:
    """Install the pinned npm packages and copy what the pages load into _build/static."""
    locked = hashlib.sha256((BOOK / "package-lock.json").read_bytes()).hexdigest()
    stamp = BUILD / "scripts.sha256"
    if STATIC.exists() and stamp.exists() and stamp.read_text() == locked:
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("book/build.py: the site needs npm; install Node.js, it brings npm along.")
    NODE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(BOOK / name, NODE)
    print("Fetching the site's scripts with npm.", flush=True)
    install = subprocess.run([npm, "ci"], cwd=NODE, capture_output=True, text=True, check=False)
    if install.returncode:
        log = BUILD / "npm.log"
        log.write_text(install.stdout + install.stderr)
        sys.exit(f"book/build.py: npm could not install the site's scripts; see {log}")
    shutil.rmtree(STATIC, ignore_errors=True)
    modules = NODE / "node_modules"
    # The script looks for its font files beside itself.
    widgets = modules / "@jupyter-widgets" / "html-manager" / "dist"
    for file in (widgets / "embed.js", *widgets.glob("*.woff2")):
        copy(file, STATIC / "widgets" / file.name)
    mathjax = modules / "mathjax" / "es5"
    for file in (mathjax / "tex-chtml.js", *files(mathjax / "output" / "chtml" / "fonts")):
        copy(file, STATIC / "mathjax" / file.relative_to(mathjax))
    for file in files(mathjax / "input" / "tex" / "extensions"):
        copy(file, STATIC / "mathjax" / file.relative_to(mathjax))
    stamp.write_text(locked)


def write_live() -> None:
    """Put what the live views load into _build/static, in a folder named by its version."""
    place = STATIC / "live"
    if not (place / assets.version()).exists():
        shutil.rmtree(place, ignore_errors=True)
        assets.write(STATIC)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def files(*places: Path) -> Iterator[Path]:
    """Yield the files under the places in a fixed order, caches left out."""
    for place in places:
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (f for f in found if f.is_file() and "__pycache__" not in f.parts)


def drop_stale_outputs() -> None:
    """Forget what was built from files that have changed since.

    Jupyter Book's cache looks only at a notebook's cells, and Sphinx only at the pages' sources.
    """
    if changed("inputs", *(ROOT / name for name in INPUTS)):
        shutil.rmtree(CACHE, ignore_errors=True)
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)
    programs = (BOOK / f"{name}.py" for name in ("site_pages", "front", "cards"))
    if changed("static", BOOK / "_static", *programs):
        # Without a page to write, Sphinx would leave the old style sheet and lines in the site.
        shutil.rmtree(BUILD / ".doctrees", ignore_errors=True)


def changed(stamp_name: str, *places: Path) -> bool:
    """Say whether files under the places differ from those at the last call for this stamp."""
    digest = hashlib.sha256()
    for file in files(*places):
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    stamp = BUILD / f"{stamp_name}.sha256"
    before = stamp.read_text() if stamp.exists() else None
    stamp.write_text(digest.hexdigest())
    return before != digest.hexdigest()


def write_config() -> None:
    """Write the configuration with the buttons that the public address allows."""
    config = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))
    known = bool(config["repository"]["url"])
    config["html"] |= {"use_repository_button": known, "use_issues_button": known}
    if not known:
        del config["launch_buttons"]
    text = json.dumps(config, indent=1)  # JSON is YAML
    if not CONFIG.exists() or CONFIG.read_text("utf-8") != text:
        CONFIG.write_text(text, "utf-8")


if __name__ == "__main__":
    sys.exit(main())
