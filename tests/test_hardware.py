"""hardware: presets against the balance points that follow from the published figures."""

import dataclasses

import pytest

from firsttoken.hardware import ACCELERATORS, LINKS, Accelerator, Link

# Typed from the sources, apart from the presets: dense peaks in 10**12 per second, memory in GB,
# bandwidth and one direction of the link in GB/s, shared memory of an SM in KiB. bf16
# and fp16 have one rate. Vendors print more where half of the entries are zero, and both directions
# of a link.
SOURCED = """
              fp32    tf32    bf16     fp8    int8  memory  bandwidth   link  shared  sources
A100-80GB     19.5     156     312       -     624      80       2039    300     164  abco
H100-SXM      66.9   494.7   989.4  1978.9  1978.9      80       3350    450     228  abco
H100-PCIe     51.2     378     756    1513    1513      80       2000     64     228  abdo
H200-SXM      66.9   494.7   989.4  1978.9  1978.9     141       4800    450     228  aeo
B200            80    1125    2250    4500    4500     180       8000    900     228  ao
GB200           80    1250    2500    5000    5000     186       8000    900     228  afo
L4            30.3      60     121     242     242      24        300     32     100  bgo
L40S          91.6     183     362     733     733      48        864     32     100  aho
RTX-3090      35.6    35.6      71       -     284      24      936.2  56.25     100  io
RTX-4090      82.6    82.6   165.2   330.3   660.6      24       1008     32     100  jo
MI300X       163.4   653.7  1307.4  2614.9  2614.9     192       5300    448       -  ka
TPU-v5e          -       -     197       -     393      16        819    200       -  l
TPU-v5p          -       -     459     459     918      95       2765    600       -  lam
TPU-v6e          -       -     918     918    1836      32       1638    400       -  la
M1             2.6       -     2.6       -       -      16      68.25      -       -  n
M1-Max        10.4       -    10.4       -       -      64        400      -       -  n
M2-Ultra      27.2       -    27.2       -       -     192        800      -       -  n
M3-Max        14.2       -    14.2       -       -     128        400      -       -  n
"""
# A word by which each source is known.
SOURCES = {
    "a": "ml-engineering",
    "b": "pytorch-lightning",
    "c": "glennklockwood",
    "d": "PB-11133-001_v02",
    "e": "v4.1, H200-SXM",
    "f": "v6.1 results, GB200",
    "g": "L4 datasheet",
    "h": "L40S datasheet",
    "i": "GA102 whitepaper",
    "j": "Ada whitepaper",
    "k": "ROCm documentation",
    "l": "TPU documentation",
    "m": "scaling-book",
    "n": "metal-benchmarks",
    "o": "CUDA C++ Programming Guide 13.1",
}
VENDOR = {"MI300X", "TPU-v5e", "TPU-v5p", "TPU-v6e"}  # whose own text was read
FROM_MEMORY = {"RTX-3090", "M1", "M1-Max", "M2-Ultra", "M3-Max"}  # one figure at least
# The one figure that is not the sources': what the literature on the H100 computes with.
ROUNDED = {"989.4": "989"}


def sourced(name: str) -> tuple[dict[str, float], dict[str, float | None], str]:
    """Return the peaks, the other figures and the sources' letters of a device in the table."""
    head, *rows = (line.split() for line in SOURCED.strip().splitlines())
    (row,) = (row for row in rows if row[0] == name)
    *texts, letters = (ROUNDED.get(text, text) for text in row[1:])
    figures = {
        column: None if text == "-" else float(text)
        for column, text in zip(head[:-1], texts, strict=True)
    }
    peaks = {d: figures.pop(d) for d in ("fp32", "tf32", "bf16", "fp8", "int8")}
    peaks["fp16"] = peaks["bf16"]
    return {d: peak for d, peak in peaks.items() if peak is not None}, figures, letters


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_figure_is_the_sources(name):
    accelerator, (peaks, figures, letters) = ACCELERATORS[name], sourced(name)
    assert accelerator.name == name
    assert accelerator.peak_flops == pytest.approx({d: 1e12 * p for d, p in peaks.items()})
    assert accelerator.memory_bytes == 1e9 * figures["memory"]
    assert accelerator.bandwidth == 1e9 * figures["bandwidth"]
    link = figures["link"]
    assert accelerator.link_bandwidth == (None if link is None else 1e9 * link)
    shared = figures["shared"]
    assert accelerator.shared_memory_bytes == (None if shared is None else 1024 * shared)
    assert [word for word in (SOURCES[x] for x in letters) if word not in accelerator.source] == []
    kinds = dict.fromkeys(VENDOR, "vendor") | dict.fromkeys(FROM_MEMORY, "partly from memory")
    assert accelerator.confidence == kinds.get(name, "secondary")


def test_every_device_that_was_sourced_is_there():
    assert list(ACCELERATORS) == [line.split()[0] for line in SOURCED.strip().splitlines()[1:]]


def test_h100_ridge_point():
    """989e12 / 3.35e12; the FLOP/s printed with sparsity would double it."""
    h100 = ACCELERATORS["H100-SXM"]
    assert round(h100.ridge_point(), 2) == 295.22
    assert round(h100.ridge_point("fp8")) == 591
    assert abs(1979e12 / h100.bandwidth - 2 * h100.ridge_point()) < 1


def test_a_rate_that_nobody_names_is_bf16():
    h100 = ACCELERATORS["H100-SXM"]
    assert h100.peak() == h100.peak("bf16") != h100.peak("fp32")


def test_memory_is_decimal():
    assert ACCELERATORS["H100-SXM"].memory_bytes == 80e9
    assert ACCELERATORS["H200-SXM"].memory_bytes == 141e9


@pytest.mark.parametrize("name", ACCELERATORS)
def test_rates_rise_as_numbers_get_narrower(name):
    """No preset mixes up two columns: fp32 ≤ tf32 ≤ bf16 = fp16 ≤ fp8 ≤ int8."""
    peaks = ACCELERATORS[name].peak_flops
    order = [peaks[d] for d in ("fp32", "tf32", "bf16", "fp16", "fp8", "int8") if d in peaks]
    assert order == sorted(order)
    assert peaks["bf16"] == peaks["fp16"]


def test_a_device_of_one_s_own():
    """Frozen, equal by value, and apart from the dict that it was made from."""
    peaks = {"fp32": 1e12}
    mine = Accelerator("mine", peaks, 50e9, 16e9)
    assert mine.ridge_point("fp32") == 20
    peaks["fp32"] = 0
    assert mine.peak_flops == {"fp32": 1e12}
    assert mine == Accelerator("mine", {"fp32": 1e12}, 50e9, 16e9)
    assert len({mine, Accelerator("mine", {"fp32": 1e12}, 50e9, 16e9)}) == 1
    assert dataclasses.asdict(mine)["bandwidth"] == 50e9
    with pytest.raises(AttributeError):
        mine.bandwidth = 1
    with pytest.raises(TypeError):
        ACCELERATORS["mine"] = mine


def test_a_dtype_without_a_rate_is_named():
    with pytest.raises(ValueError, match=r"dtype 'fp8' has no peak rate on A100-80GB; .*bf16"):
        ACCELERATORS["A100-80GB"].ridge_point("fp8")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (({"bf16": 0}, 1, 1), "peak_flops['bf16']"),
        (({"bf16": 1}, -1, 1), "bandwidth"),
        (({"bf16": 1}, 1, 0), "memory_bytes"),
        (({"bf16": 1}, 1, 1, 0), "link_bandwidth"),
        (({"bf16": 1}, 1, 1, None, "", "", 0), "shared_memory_bytes"),
    ],
)
def test_rates_that_cannot_be(arguments, name):
    with pytest.raises(ValueError, match="must be positive") as error:
        Accelerator("mine", *arguments)
    assert name in str(error.value)


# Typed from the sources: one direction. NVLink: all links of a GPU (ml-engineering
# network/README.md @0030e63, "Unidirection"); InfiniBand: 4 lanes, Gbit/s (there, "Signaling
# rate"); the latencies: NCCL, in microseconds a round.
LINKED = {
    "NVLink-3": (300e9, 0.6),
    "NVLink-4": (450e9, 0.6),
    "NVLink-5": (900e9, 0.6),
    "PCIe-4": (64e9 / 2, 1.0),
    "PCIe-5": (128e9 / 2, 1.0),
    "InfiniBand-HDR": (200e9 / 8, 2.7),
    "InfiniBand-NDR": (400e9 / 8, 2.7),
    "Ethernet-100G": (100e9 / 8, 2.7),
    "Ethernet-10G": (10e9 / 8, 2.7),
}


def test_links_are_the_sources():
    assert {link.name: (link.bandwidth, link.latency_s) for link in LINKS.values()} == {
        name: (bandwidth, pytest.approx(us * 1e-6)) for name, (bandwidth, us) in LINKED.items()
    }
    assert all("NCCL" in link.source for link in LINKS.values())


@pytest.mark.parametrize(
    ("device", "link"),
    [
        ("A100-80GB", "NVLink-3"),
        ("H100-SXM", "NVLink-4"),
        ("H200-SXM", "NVLink-4"),
        ("B200", "NVLink-5"),
        ("GB200", "NVLink-5"),
        ("L40S", "PCIe-4"),
        ("L4", "PCIe-4"),
        ("H100-PCIe", "PCIe-5"),
    ],
)
def test_devices_have_the_links_of_the_table(device, link):
    assert ACCELERATORS[device].link_bandwidth == LINKS[link].bandwidth


@pytest.mark.parametrize(("bandwidth", "latency_s"), [(0, 0), (1, -1), (float("nan"), 0)])
def test_a_link_refuses(bandwidth, latency_s):
    with pytest.raises(ValueError, match=r"bandwidth|latency_s"):
        Link("wire", bandwidth, latency_s)
