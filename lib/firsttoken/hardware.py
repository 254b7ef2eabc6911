"""Accelerators: dense peak rates, memory and links, each figure with its source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Accelerator:
    """One device as the roofline sees it: how fast it computes, how fast its memory answers.

    `peak_flops` maps a dtype to the dense peak with the accumulation that inference uses (fp32 for
    floats); vendors often print twice that, for matrices with half of their entries zero.
    `memory_bytes` is the vendor's decimal figure. `link_bandwidth` is one direction.
    `shared_memory_bytes` is the fast memory that the program fills itself, of one of the device's
    many processors (a streaming multiprocessor, SM); one block of threads gets 1 KiB less.
    `confidence` says what the figures rest on, but for those that `source` names apart: "vendor"
    (the vendor's text was read), "secondary" (texts that quote it), "partly from memory".

    Units:  FLOP/s (OP/s for integers), bytes/s, bytes.
    Raises: ValueError for rates and sizes that are not positive.

    >>> round(ACCELERATORS["H100-SXM"].ridge_point(), 2)
    295.22
    """

    name: str
    peak_flops: Mapping[str, float] = field(hash=False)
    bandwidth: float
    memory_bytes: float
    link_bandwidth: float | None = None
    source: str = ""
    confidence: str = ""
    shared_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", dict(self.peak_flops))
        positive = {f"peak_flops[{dtype!r}]": peak for dtype, peak in self.peak_flops.items()}
        positive |= {"bandwidth": self.bandwidth, "memory_bytes": self.memory_bytes}
        for name in ("link_bandwidth", "shared_memory_bytes"):
            if getattr(self, name) is not None:
                positive[name] = getattr(self, name)
        for name, value in positive.items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")

    def peak(self, dtype: str = "bf16") -> float:
        """Return the peak rate for a dtype.

        Units:  FLOP/s
        Raises: ValueError where this device lists no rate for the dtype.
        """
        if dtype not in self.peak_flops:
            raise ValueError(
                f"dtype {dtype!r} has no peak rate on {self.name}; "
                f"expected one of {', '.join(self.peak_flops)}"
            )
        return self.peak_flops[dtype]

    def ridge_point(self, dtype: str = "bf16") -> float:
        """Return the intensity at which computing takes as long as reading memory.

        Work with fewer FLOPs per byte waits for memory; work with more waits for the arithmetic.

        Holds:  for the two peaks. A kernel that reaches a smaller share of one than of the other
                has its own: below this where the arithmetic falls short, above where memory does.
        Units:  FLOP/byte
        Raises: ValueError where this device lists no rate for the dtype.
        """
        return self.peak(dtype) / self.bandwidth


@dataclass(frozen=True)
class Link:
    """A way from one device to another, in one direction.

    `latency_s` is what each round of a ring adds, whatever the size of the message.

    Units:  bytes/s, seconds
    Raises: ValueError for a bandwidth that is not positive and a negative latency.

    >>> LINKS["NVLink-4"].bandwidth / LINKS["InfiniBand-NDR"].bandwidth
    9.0
    """

    name: str
    bandwidth: float
    latency_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {self.bandwidth!r}")
        if not self.latency_s >= 0:
            raise ValueError(f"latency_s must not be negative, got {self.latency_s!r}")


# Where the figures come from. What NVIDIA prints "with sparsity" is halved here.
_ML_ENGINEERING = "stas00/ml-engineering compute/accelerator and network @744d01e"
_LIGHTNING = "Lightning-AI/pytorch-lightning utilities/throughput.py @1526f84"
_KLOCKWOOD = "glennklockwood.com/processors (quotes datasheet and whitepaper)"
_TPU_DOCS = "Google Cloud TPU documentation"
_SCALING_BOOK = "jax-ml/scaling-book tpus.md @0819a7d"
_METAL = "philipturner/metal-benchmarks (fp16 runs at the rate of fp32)"
# The largest part of an SM's L1 that can be shared memory, KiB: CUDA C++ Programming Guide 13.1,
# chapter on compute capabilities (8.0, 8.6 and 8.9, 9.0, 10.0), sections "Shared Memory".
_CUDA_GUIDE = "shared memory: CUDA C++ Programming Guide 13.1, compute capabilities"
_APPLE = f"{_METAL}; bandwidth as Apple announced it"

_VENDOR, _SECONDARY, _MEMORY = "vendor", "secondary", "partly from memory"


def _accelerator(
    name: str,
    tera: Mapping[str, float],
    memory_gb: float,
    gb_per_s: float,
    link_gb_per_s: float | None,
    confidence: str,
    source: str,
    shared_kib: int | None = None,
) -> Accelerator:
    """Build a preset from the units that data sheets use; "half" stands for bf16 and fp16."""
    peaks = {dtype: rate * 1e12 for dtype, rate in tera.items() if dtype != "half"}
    peaks |= dict.fromkeys(("bf16", "fp16"), tera["half"] * 1000000000000.0)
    link = None if link_gb_per_s is None else link_gb_per_s * 1e9
    shared = None if shared_kib is None else shared_kib * 2**10
    source = source if shared is None else f"{source}; {_CUDA_GUIDE}"
    sizes = gb_per_s * 1e9, memory_gb * 1e9, link
    return Accelerator(name, peaks, *sizes, source, confidence, shared)


# bf16 is 989 and not 989.4: rounded as in the datasheet, since the literature computes with that.
_HOPPER = {"fp32": 66.9, "tf32": 494.7, "half": 989, "fp8": 1978.9, "int8": 1978.9}

# fmt: off
_PRESETS = (
    # name, dense peaks in 10**12 per second,
    #     memory GB, bandwidth GB/s, link GB/s one way, confidence, source, shared memory KiB
    _accelerator("A100-80GB", {"fp32": 19.5, "tf32": 156, "half": 312, "int8": 624},
                 80, 2039, 300, _SECONDARY, f"{_ML_ENGINEERING}; {_LIGHTNING}; {_KLOCKWOOD}", 164),
    _accelerator("H100-SXM", _HOPPER,
                 80, 3350, 450, _SECONDARY, f"{_ML_ENGINEERING}; {_LIGHTNING}; {_KLOCKWOOD}", 228),
    _accelerator("H100-PCIe", {"fp32": 51.2, "tf32": 378, "half": 756, "fp8": 1513, "int8": 1513},
                 80, 2000, 64, _SECONDARY,
                 f"{_ML_ENGINEERING}; {_LIGHTNING}; bandwidth: NVIDIA brief PB-11133-001_v02", 228),
    _accelerator("H200-SXM", _HOPPER,
                 141, 4800, 450, _SECONDARY,
                 f"{_ML_ENGINEERING}; link: MLCommons inference_results_v4.1, H200-SXM-141GBx8",
                 228),
    _accelerator("B200", {"fp32": 80, "tf32": 1125, "half": 2250, "fp8": 4500, "int8": 4500},
                 180, 8000, 900, _SECONDARY, _ML_ENGINEERING, 228),
    _accelerator("GB200", {"fp32": 80, "tf32": 1250, "half": 2500, "fp8": 5000, "int8": 5000},
                 186, 8000, 900, _SECONDARY,
                 f"one GPU; {_ML_ENGINEERING}; memory: MLCommons v6.1 results, GB200-NVL72", 228),
    _accelerator("L4", {"fp32": 30.3, "tf32": 60, "half": 121, "fp8": 242, "int8": 242},
                 24, 300, 32, _SECONDARY, f"{_LIGHTNING}; L4 datasheet as quoted", 100),
    _accelerator("L40S", {"fp32": 91.6, "tf32": 183, "half": 362, "fp8": 733, "int8": 733},
                 48, 864, 32, _SECONDARY, f"{_ML_ENGINEERING}; L40S datasheet as reproduced", 100),
    _accelerator("RTX-3090", {"fp32": 35.6, "tf32": 35.6, "half": 71, "int8": 284},
                 24, 936.2, 56.25, _MEMORY,
                 "GA102 whitepaper, appendix A, table 9, as quoted; the link from memory", 100),
    _accelerator("RTX-4090",
                 {"fp32": 82.6, "tf32": 82.6, "half": 165.2, "fp8": 330.3, "int8": 660.6},
                 24, 1008, 32, _SECONDARY, "Ada whitepaper v2.1, appendix A, table 2, as quoted",
                 100),
    _accelerator("MI300X",
                 {"fp32": 163.4, "tf32": 653.7, "half": 1307.4, "fp8": 2614.9, "int8": 2614.9},
                 192, 5300, 448, _VENDOR,
                 f"ROCm documentation, gpu-arch/mi300; link: {_ML_ENGINEERING}"),
    _accelerator("TPU-v5e", {"half": 197, "int8": 393},
                 16, 819, 200, _VENDOR, _TPU_DOCS),
    _accelerator("TPU-v5p", {"half": 459, "fp8": 459, "int8": 918},
                 95, 2765, 600, _VENDOR, f"{_TPU_DOCS}; int8: {_ML_ENGINEERING}; {_SCALING_BOOK}"),
    _accelerator("TPU-v6e", {"half": 918, "fp8": 918, "int8": 1836},
                 32, 1638, 400, _VENDOR, f"{_TPU_DOCS}; fp8: {_ML_ENGINEERING}"),
    # Memory is shared with the CPU; the largest configuration is listed.
    _accelerator("M1", {"fp32": 2.6, "half": 2.6},
                 16, 68.25, None, _MEMORY, f"8-core GPU; {_APPLE}"),
    _accelerator("M1-Max", {"fp32": 10.4, "half": 10.4},
                 64, 400, None, _MEMORY, f"32-core GPU, rate estimated by the press; {_APPLE}"),
    _accelerator("M2-Ultra", {"fp32": 27.2, "half": 27.2},
                 192, 800, None, _MEMORY, f"76-core GPU, rate from memory; {_APPLE}"),
    _accelerator("M3-Max", {"fp32": 14.2, "half": 14.2},
                 128, 400, None, _MEMORY, f"40-core GPU, rate not published by Apple; {_APPLE}"),
)
# fmt: on

ACCELERATORS: Mapping[str, Accelerator] = MappingProxyType({a.name: a for a in _PRESETS})
"""Devices by name, each with its source and how well the figures are known."""

# Of a network that plain TCP runs on, too, NCCL assumes the latency of its class "NET".
_NETWORK = "stas00/ml-engineering network/README.md @0030e63"
_NCCL = "latency: NCCL src/graph/tuning.cc, hwLat, ring with protocol LL"

# fmt: off
_LINKS = (
    # name, GB/s one way, latency of a round in µs, source of the bandwidth
    ("NVLink-3", 300, 0.6, f"A100, all links of a GPU; {_NETWORK}"),
    ("NVLink-4", 450, 0.6, f"H100 and H200, all links of a GPU; {_NETWORK}"),
    ("NVLink-5", 900, 0.6, f"B200, all links of a GPU; {_NETWORK}"),
    ("PCIe-4", 32, 1.0, "16 lanes of 16 GT/s; L40S datasheet as reproduced"),
    ("PCIe-5", 64, 1.0, f"16 lanes of 32 GT/s; {_ML_ENGINEERING}"),
    ("InfiniBand-HDR", 25, 2.7, f"one port of 4 lanes, 200 Gbit/s; {_NETWORK}"),
    ("InfiniBand-NDR", 50, 2.7, f"one port of 4 lanes, 400 Gbit/s; {_NETWORK}"),
    ("Ethernet-100G", 12.5, 2.7, "100 Gbit/s by its name"),
    ("Ethernet-10G", 1.25, 2.7, "10 Gbit/s by its name"),
)
# fmt: on

LINKS: Mapping[str, Link] = MappingProxyType(
    {name: Link(name, gb * 1e9, us * 1e-6, f"{text}; {_NCCL}") for name, gb, us, text in _LINKS}
)
"""Links by name: within a node (NVLink, PCIe) and between nodes, one port for each device."""
