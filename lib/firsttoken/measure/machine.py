"""The machine: which devices it has, their names and memory, and waiting for them."""

import math
import os
from collections.abc import Callable

from firsttoken.provenance import processor


def find_device(device: str | None) -> str:
    """Return a device that is here; for None the GPU, where there is one."""
    import torch

    present = ["cpu"]
    if torch.backends.mps.is_available():
        present.append("mps")
    if torch.cuda.is_available():
        present.append("cuda")
    if device is None:
        return present[-1]
    if device not in present:
        raise ValueError(f"device {device!r} is not here; expected one of {', '.join(present)}")
    return device


def waiting_for(device: str) -> Callable[[], None]:
    """Return what lets the host wait until the device has done all it was given."""
    import torch

    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)


def machine_name(device: str) -> str:
    """Return the name under which a device's rates are kept and shown."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_name()
    if device == "mps":
        return f"GPU of {processor()}"
    return f"{processor()}, {torch.get_num_threads()} threads"


def memory_bytes(device: str) -> float:
    """Return the device's memory; infinite where the system does not say."""
    import torch

    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    if device == "mps":
        return torch.mps.recommended_max_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return math.inf
