"""Numbers as readers type them, with their units: "4 GiB", "1,234.5", "2/3", "80 %"."""

import math
import re
from types import MappingProxyType

MAX_TYPED = 100  # characters; no number needs more
SIZES = MappingProxyType(
    {"B": 1.0}
    | {f"{prefix}B": 1000.0**i for i, prefix in enumerate("kMGTP", 1)}
    | {f"{prefix}iB": 1024.0**i for i, prefix in enumerate("KMGTP", 1)}
)
_TIMES = MappingProxyType({"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0})
_FLOPS = MappingProxyType(
    {"FLOP": 1.0} | {f"{prefix}FLOP": 1000.0**i for i, prefix in enumerate("kMGTPEZ", 1)}
)
_SPELLINGS = MappingProxyType(
    {"bytes": "B", "byte": "B", "KB": "kB", "us": "µs", "μs": "µs", "sec": "s"}
    | {f"{flop}s": flop for flop in _FLOPS}
)
BLANKS = " \t\n\r\u00a0\u202f"
_NUMBER = re.compile(
    r"([+-]?)([0-9]{1,3}(?:[,_ \u00a0\u202f][0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))"
    r"((?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)[ \t\n\r\u00a0\u202f]*([\s\S]*)"
)
UNREADABLE = (
    "That is not a number that can be read here. Write it like 1234.5, 1,234.5, 2/3 or 1.2e9."
)


def family_of(unit: str) -> dict[str, float]:
    """Return the other units of a family, each in terms of `unit`: {"MB": 0.001, …} for "GB"."""
    head, slash, tail = unit.partition("/")
    head = _SPELLINGS.get(head, head)
    for family in (SIZES, _TIMES, _FLOPS):
        if head in family:
            return {
                f"{other}{slash}{tail}": scale / family[head]
                for other, scale in family.items()
                if other != head
            }
    return {}


def typed_units(unit: str) -> dict[str, float]:
    """Return what may be typed after a number, each in terms of `unit`; spellings included."""
    head, slash, tail = unit.partition("/")
    scales = {unit: 1.0, f"{_SPELLINGS.get(head, head)}{slash}{tail}": 1.0} | family_of(unit)
    for spelling, name in _SPELLINGS.items():
        if f"{name}{slash}{tail}" in scales:
            scales.setdefault(f"{spelling}{slash}{tail}", scales[f"{name}{slash}{tail}"])
    if not family_of(unit) and head.endswith("s"):
        scales[f"{head[:-1]}{slash}{tail}"] = 1.0  # "1 token"
    for name, scale in list(scales.items()):
        scales.setdefault(name.lower(), scale)
    if unit == "":
        scales["%"] = 0.01
    scales.pop("", None)
    return scales


def unknown_unit(unit: str) -> str:
    if family_of(unit):
        return f"Give the answer in {unit}, or with another unit of its kind."
    return f"Give the answer in {unit}." if unit else "Give a number without a unit."


def parse(text: str, unit: str) -> tuple[float, str]:
    """Return (number in `unit`, problem); the problem is empty where the text could be read."""
    text = text[: 2 * MAX_TYPED].strip(BLANKS).replace("\u2212", "-")
    found = _NUMBER.fullmatch(text) if len(text) <= MAX_TYPED else None
    if not found or re.match("[0-9.,_]", found[4]):
        return math.nan, UNREADABLE
    number, rest = _value_of(found), found[4]
    below = _NUMBER.fullmatch(rest[1:].lstrip(BLANKS)) if rest[:1] == "/" else None
    if below:  # a quotient, as "2/3"
        if _value_of(below) == 0 or re.match("[0-9.,_]", below[4]):
            return math.nan, UNREADABLE
        number, rest = number / _value_of(below), below[4]
    scales = typed_units(unit)
    if rest and rest not in scales:
        return math.nan, unknown_unit(unit)
    number = number * scales[rest] if rest else number
    return (number, "") if math.isfinite(number) else (math.nan, UNREADABLE)


def _value_of(found: re.Match[str]) -> float:
    return float(found[1] + re.sub("[^0-9]", "", found[2]) + found[3])
