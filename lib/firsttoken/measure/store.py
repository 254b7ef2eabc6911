"""The measured profile, kept in a file: what must be equal for it to hold, reading and writing."""

import json
import os
import platform
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firsttoken.measure.machine import machine_name
from firsttoken.measure.prediction import MachineProfile
from firsttoken.measure.sizes import Sizes

_FORMAT = 2  # of stored profiles; another number makes a stored one foreign


def identity_of(device: str) -> dict[str, Any]:
    """Return what must be equal for a stored profile to hold."""
    import torch

    return {
        "format": _FORMAT,
        "machine": machine_name(device),
        "device": device,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "torch": torch.__version__,
    }


def listed(sizes: Sizes) -> dict[str, Any]:
    """Return the sizes as JSON would give them back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(sizes).items()}


def load_profile(path: Path, identity: dict[str, Any]) -> MachineProfile | None:
    """Return the stored profile; None where there is none, or none that can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["identity"] != identity:
            return None
        return MachineProfile.from_dict(data["profile"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def store_profile(path: Path, identity: dict[str, Any], profile: MachineProfile) -> None:
    """Write the profile whole or not at all; a folder that cannot be written to costs a warning."""
    text = json.dumps({"identity": identity, "profile": profile.as_dict()}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder, path.name)
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
    except OSError as error:
        warnings.warn(f"the measured profile could not be kept: {error}", RuntimeWarning, 3)
