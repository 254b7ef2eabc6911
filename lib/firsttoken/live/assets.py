"""What a view loads: the script, the weights, the tokenizer, packed for the way to the browser."""

import functools
import hashlib
import json
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from firsttoken.checks import check_choice
from firsttoken.paths import data_path, smollm2_path

TARGET = ("tokenizer.json", "target/config.json", "target/model.safetensors")
"""What every view reads, by names under data/model."""

DRAFTS = {
    "draft": ("draft/config.json", "draft/model.safetensors"),
    "pruned_draft": ("pruned_draft/config.json", "pruned_draft/model.safetensors"),
    "suffix_automaton": (),
    "medusa_heads": ("medusa_heads/model.safetensors",),
    "eagle_draft": ("eagle_draft/config.json", "eagle_draft/model.safetensors"),
}
"""The drafts that the target can have, each with the files that a page reads once it is chosen."""

FILES = (*TARGET, *(name for names in DRAFTS.values() for name in names))
"""The shipped files that a page may read."""

PART_BYTES = 49_500_000
"""The most that one file of a site may have: hosts refuse larger ones, from 50 or 100 MB on."""

_GZIP = 31  # zlib's number for a gzip header and the largest window


@functools.cache
def packed(name: str) -> bytes:
    """Return a shipped file as it travels: gzip, 5.3 MB for the target and a draft.

    Weights are numbers in bfloat16. The second byte of a number (sign and most of the exponent) is
    mostly one of few values, the first may be any. Therefore they are packed apart, first all first
    bytes, then all second ones: that takes an eighth less than the file as it is. The page puts
    them together again, and has the file, byte for byte.

    Raises: ValueError for a name that is not in FILES.
    """
    content, strategy = _content(name), zlib.Z_DEFAULT_STRATEGY
    if name.endswith(".safetensors"):
        content = content[0::2] + content[1::2]
        # Runs of bytes do not repeat in weights: to look for them takes fifty times as long.
        strategy = zlib.Z_HUFFMAN_ONLY
    packer = zlib.compressobj(9, wbits=_GZIP, strategy=strategy)
    return packer.compress(content) + packer.flush()


@functools.cache
def manifest() -> dict[str, Any]:
    """Return, for each file: its size, its size on the way, and the SHA-256 of its content."""
    return {
        name: {
            "bytes": len(_content(name)),
            "packed_bytes": len(packed(name)),
            "sha256": hashlib.sha256(_content(name)).hexdigest(),
        }
        for name in FILES
    }


def script() -> str:
    """Return the component itself: one JavaScript module (`book/bundle.py` writes it)."""
    return files("firsttoken").joinpath("live/bundle.js").read_text("utf-8")


@functools.cache
def version() -> str:
    """Return a name for what is shipped: it changes when a file or the script does."""
    real = real_file()
    # Not its size: a model that is quantized in another way may have the same.
    digest = hashlib.sha256(real.read_bytes()).hexdigest() if real else ""
    everything = script() + json.dumps(manifest(), sort_keys=True) + digest
    return hashlib.sha256(everything.encode()).hexdigest()[:12]


def real_file() -> Path | None:
    """Return the real model's GGUF file, which a site may carry; None where it is missing."""
    try:
        return smollm2_path()
    except ValueError:
        return None


def write(folder: Path, real: Path | None = None) -> Path:
    """Write all that a view on a website loads into folder/live/VERSION and return that place.

    `real` is a real model's GGUF file: it goes along, in parts, and readers have the choice.
    """
    place = folder / "live" / version()
    for name in FILES:
        target = place / f"{name}.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed(name))
    (place / "live.js").write_text(script(), "utf-8")
    listed = manifest() | ({} if real is None else {"real": _write_parts(real, place)})
    (place / "manifest.json").write_text(json.dumps(listed), "utf-8")
    return place


def _write_parts(real: Path, place: Path) -> dict[str, Any]:
    """Write a file in parts that every static host takes; return what a page has to know of it."""
    content, names = real.read_bytes(), list[str]()
    for at in range(0, len(content), PART_BYTES):
        names.append(f"{real.stem}.{len(names)}")
        (place / names[-1]).write_bytes(content[at : at + PART_BYTES])
    return {
        "name": real.stem.rsplit(".", 1)[0],
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "parts": names,
    }


def _content(name: str) -> bytes:
    check_choice("name", name, FILES)
    return data_path(f"model/{name}").read_bytes()
