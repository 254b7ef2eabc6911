"""Write the live views' script, lib/firsttoken/live/bundle.js: `python book/bundle.py`.

The sources beside it are modules, which a page could only load one by one and a notebook not at
all. esbuild makes one file of them. It is committed, so that JupyterLab needs no Node.js; a test
makes it again and compares.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIVE = ROOT / "lib" / "firsttoken" / "live"
BUNDLE = LIVE / "bundle.js"
PARTS = ROOT / "_build" / "live"
MODULES = ROOT / "_build" / "node" / "node_modules"
DOT = "i32x4.relaxed_dot_i8x16_i7x16_add_s"


def main() -> int:
    spec = importlib.util.spec_from_file_location("build", ROOT / "book" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.fetch_scripts()
    BUNDLE.write_text(bundled(), "utf-8")
    print(f"{BUNDLE.relative_to(ROOT)}: {BUNDLE.stat().st_size / 1000:.0f} KB")
    return 0


def bundled() -> str:
    """Return the one file: views and, as texts within it, style and the worker with its kernels."""
    kernels()
    esbuild(LIVE / "engine" / "worker.js", PARTS / "worker.txt", "--loader:.wasm=binary")
    for name in ("live", "loader"):
        esbuild(LIVE / f"{name}.css", PARTS / f"{name}_css.txt")
    esbuild(LIVE / "live.js", PARTS / "live.js", "--loader:.txt=text")
    return (PARTS / "live.js").read_text("utf-8")


def kernels() -> None:
    """Compile what computes, blocks.wat also with the instruction that not all browsers have."""
    PARTS.mkdir(parents=True, exist_ok=True)
    blocks = (LIVE / "engine" / "blocks.wat").read_text("utf-8")
    relaxed = PARTS / "blocks_relaxed.wat"
    relaxed.write_text(blocks.replace("call $dot ", f"{DOT} "), "utf-8")
    for source in (LIVE / "engine" / "kernel.wat", LIVE / "engine" / "blocks.wat", relaxed):
        program("wat2wasm", "--enable-all", source, "-o", PARTS / f"{source.stem}.wasm")


def esbuild(source: Path, target: Path, *loaders: str) -> None:
    program(
        "esbuild",
        source,
        f"--outfile={target}",
        "--bundle",
        "--minify",
        "--format=esm",
        "--target=es2022",
        "--charset=utf8",
        "--legal-comments=eof",
        "--log-level=warning",
        f"--alias:built={PARTS}",
        *loaders,
    )


def program(name: str, *arguments: object) -> None:
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    command = [MODULES / ".bin" / name, *arguments]
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env=environment)


if __name__ == "__main__":
    sys.exit(main())
