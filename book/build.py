"""Build the site into _build/html: `python book/build.py`.

Fetches the scripts that the site serves itself, then runs Jupyter Book with warnings as errors.
Notebooks run only when they, lib/, data/ or the pinned versions have changed.
"""

import errno
import gzip
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import yaml
from jupyter_cache import get_cache
from jupyter_cache.cache.main import JupyterCacheBase

from firsttoken.live import assets

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
BUILD = ROOT / "_build"
NODE = BUILD / "node"
STATIC = BUILD / "static"
CONFIG = BUILD / "_config.yml"
CACHE = BUILD / ".jupyter_cache"
# There while Sphinx is at work: pages that a build was stopped in would pass for finished ones.
UNFINISHED = BUILD / "unfinished"
# What a notebook's outputs depend on, beside the notebook itself.
INPUTS = ("lib", "data", "constraints.txt")
# What a chapter may take on two quiet cores; other machines differ, so that more is only noted.
CHAPTER_S = 30
# Where a notebook that fails leaves its traceback, in the warning's own words.
SAVED = re.compile(r"saved in: (.+\.log)")
NO_SPACE = os.strerror(errno.ENOSPC)
# What npm says where it cannot get at what it wants.
NO_NETWORK = {"EAI_AGAIN", "ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "ETIMEDOUT"}
# What the calculator runs in the page: the core of Pyodide, and the formulas with what they need.
PYODIDE = (
    *("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm"),
    *("python_stdlib.zip", "pyodide-lock.json"),
)
FORMULAS = (
    *("__init__.py", "architectures", "calculator.py", "checks.py", "hardware.py"),
    *("kv_cache/__init__.py", "kv_cache/sizes.py", "roofline.py", "throughput.py", "units.py"),
    *("parallel/__init__.py", "parallel/collectives.py", "parallel/memory.py"),
    *("parallel/pipeline.py", "parallel/planner.py", "parallel/tensor.py"),
)


def main() -> int:
    BUILD.mkdir(exist_ok=True)
    fetch_scripts()
    write_live()
    # A font cache of its own: in the one at home, fonts of an environment deleted since can be
    # missing. On a new machine this builds it; in a notebook its notice would be a warning.
    os.environ["MPLCONFIGDIR"] = str(BUILD / "matplotlib")
    importlib.import_module("matplotlib.font_manager")
    drop_stale_outputs()
    write_config()
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", ".", "-W", "-n", "--keep-going"]
    command += ["--toc", "book/_toc.yml", "--config", str(CONFIG.relative_to(ROOT))]
    # Kernels must find this interpreter's packages, explore() must draw for the site, and a claim
    # that does not hold must stop the build.
    # One thread: beside other programs, several wait for each other a hundred times as long.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "FIRSTTOKEN_SITE": "1"}
    environment |= {"FIRSTTOKEN_CLAIMS": "raise", "PYTHONHASHSEED": "0"}
    UNFINISHED.touch()
    status = build(command, environment)
    if status == 0:
        UNFINISHED.unlink()
    return status


def build(command: list, environment: dict[str, str]) -> int:
    """Run a build, and say at its end which chapters took long.

    When it fails, say what stopped it, with what cells complained of.
    """
    stopped_by, before, is_full = [], runs(), False
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as run:
        for line in run.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            if "WARNING: " in line or "ERROR: " in line:
                stopped_by.append(line)
                stopped_by += (Path(log).read_text("utf-8") for log in SAVED.findall(line))
            is_full |= NO_SPACE in line
    if is_full:
        raise OSError(errno.ENOSPC, NO_SPACE, str(BUILD))
    if run.returncode:
        stopped_by += complaints(BUILD / "jupyter_execute")
        print("book/build.py: what stopped the build:", *stopped_by, sep="\n", file=sys.stderr)
    for chapter, seconds in sorted(runs() - before):
        if seconds > CHAPTER_S:
            print(f"book/build.py: {chapter} took {seconds:.0f} s, of {CHAPTER_S} s at most.")
    return run.returncode


@contextmanager
def kept_runs(folder: Path) -> Iterator[JupyterCacheBase]:
    """Open the cache of runs in a folder; its database is closed behind."""
    cache = get_cache(folder)
    try:
        yield cache
    finally:
        cache.db.dispose()


def runs() -> set[tuple[str, float]]:
    """Return of which chapters the cache holds a run, and how many seconds that took."""
    with kept_runs(CACHE) as cache:
        records = cache.list_cache_records()
        return {(Path(record.uri).stem, record.data["execution_seconds"]) for record in records}


def complaints(executed: Path) -> Iterator[str]:
    """Yield what the cells of notebooks that ran wrote to stderr."""
    for path in sorted(executed.rglob("*.ipynb")):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if output.get("name") == "stderr":
                    yield f"{path.stem}, cell {cell['id']}: {''.join(output['text'])}"


def fetch_scripts() -> None:
    """Install the pinned npm packages and copy what the pages load into _build/static."""
    locked = hashlib.sha256((BOOK / "package-lock.json").read_bytes()).hexdigest()
    stamp = BUILD / "scripts.sha256"
    if STATIC.exists() and stamp.exists() and stamp.read_text() == locked:
        return
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("First Token: the site needs npm. Install Node.js; it brings npm along.")
    NODE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(BOOK / name, NODE)
    print("Fetching the site's scripts with npm.", flush=True)
    install = subprocess.run([npm, "ci"], cwd=NODE, capture_output=True, text=True, check=False)
    if install.returncode:
        said = install.stdout + install.stderr
        found = re.search(r"npm error code (\w+)", said)
        code = found[1] if found else ""
        if code == "ENOSPC":
            raise OSError(errno.ENOSPC, NO_SPACE, str(NODE))
        why = "no network: connect and run make book again" if code in NO_NETWORK else code
        log = BUILD / "npm.log"
        log.write_text(said, "utf-8")
        sys.exit(f"First Token: npm cannot install the site's scripts: {why}. Details: {log}")
    stamp.unlink(missing_ok=True)
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
    if not (STATIC / "live" / assets.version()).exists():
        part = new_folder(STATIC)
        assets.write(part, assets.real_file())
        put_whole(part / "live", STATIC / "live")


def write_calculator(static: Path = STATIC) -> dict:
    """Put what the calculator loads into a folder named by its version.

    Returns where that is, how many bytes it fetches once it is asked to calculate (the progress
    bar counts them), and how many travel.
    """
    sources = {path.name: path for path in files(BOOK / "calculator") if path.suffix != ".py"}
    sources |= {f"pyodide/{name}": NODE / "node_modules" / "pyodide" / name for name in PYODIDE}
    contents = {name: path.read_bytes() for name, path in sources.items()}
    contents["formulas.zip"] = formulas()
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    version = digest.hexdigest()[:12]
    if not (static / "calculator" / version).exists():
        part = new_folder(static)
        for name, content in contents.items():
            (part / version / name).parent.mkdir(parents=True, exist_ok=True)
            (part / version / name).write_bytes(content)
        put_whole(part, static / "calculator")
    loaded = {name: content for name, content in contents.items() if "/" in name or ".zip" in name}
    fetched = [content for name, content in loaded.items() if not name.endswith(".mjs")]
    packed = [c if n.endswith(".zip") else gzip.compress(c, mtime=0) for n, c in loaded.items()]
    return {
        "place": f"_static/calculator/{version}/",
        "total_bytes": sum(map(len, fetched)),
        "packed_bytes": sum(map(len, packed)),
    }


def formulas() -> bytes:
    """Return a zip of the library's closed forms and of the calculator's own page."""
    library = ROOT / "lib" / "firsttoken"
    members = {
        path: path.relative_to(ROOT / "lib") for path in files(*map(library.joinpath, FORMULAS))
    }
    members[BOOK / "calculator" / "page.py"] = Path("page.py")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, name in members.items():
            # A fixed date: the same files make the same zip.
            member = zipfile.ZipInfo(str(PurePosixPath(name)))
            archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def new_folder(beside: Path) -> Path:
    """Return an empty folder to write in; one that a stopped build left is removed."""
    part = beside.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


def put_whole(folder: Path, target: Path) -> None:
    """Put a folder that is finished in the place of an older one."""
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.replace(target)


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
    pages = BUILD / ".doctrees"
    forget_if_changed("inputs", [CACHE, pages], *(ROOT / name for name in INPUTS))
    # Without a page to write, Sphinx would leave the old style sheet and lines in the site.
    programs = sorted(BOOK.glob("*.py"))
    forget_if_changed("static", [pages], BOOK / "_static", BOOK / "calculator", *programs)
    if UNFINISHED.exists():
        shutil.rmtree(pages, ignore_errors=True)
        if not readable(CACHE):
            shutil.rmtree(CACHE)


def readable(cache: Path) -> bool:
    """Say whether all runs can be read of which the cache knows; it notes them first."""
    try:
        with kept_runs(cache) as runs:
            for record in runs.list_cache_records():
                runs.get_cache_bundle(record.pk)
    except Exception:  # whatever reading a half-written file raises
        return False
    return True


def forget_if_changed(stamp_name: str, made: list[Path], *places: Path) -> None:
    """Remove what was made of the files under the places if they have changed since."""
    digest = hashlib.sha256()
    for file in files(*places):
        digest.update(str(file.relative_to(ROOT)).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    stamp = BUILD / f"{stamp_name}.sha256"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        stamp.write_text(digest.hexdigest())


def write_config() -> None:
    """Write the configuration: the buttons that the public address allows, the calculator."""
    config = yaml.safe_load((BOOK / "_config.yml").read_text("utf-8"))
    known = bool(config["repository"]["url"])
    config["html"] |= {"use_repository_button": known, "use_issues_button": known}
    if not known:
        del config["launch_buttons"]
    config["sphinx"]["config"]["calculator"] = write_calculator()
    text = json.dumps(config, indent=1)  # JSON is YAML
    if not CONFIG.exists() or CONFIG.read_text("utf-8") != text:
        CONFIG.write_text(text, "utf-8")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        said = f"{error.filename or BUILD}: {error.strerror}. Mend that and run make book again."
        sys.exit(f"First Token: {said}")
