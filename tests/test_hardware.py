"""hardware: presets against the balance points that follow from the published figures."""

import dataclasses

import pytest

from firsttoken.hardware import ACCELERATORS, LINKS, Accelerator, Link, _accelerator

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


def sourced():
    """Yield name, peaks, the other figures and the sources' letters of each device in the table."""
    head, *rows = (line.split() for line in SOURCED.strip().splitlines())
    for name, *texts, letters in rows:
        numbers = [None if x == "-" else float(ROUNDED.get(x, x)) for x in texts]
        figures = dict(zip(head[:-1], numbers, strict=True))
        peaks = {d: figures.pop(d) for d in ("fp32", "tf32", "bf16", "fp8", "int8")}
        peaks["fp16"] = peaks["bf16"]
        yield name, {d: peak for d, peak in peaks.items() if peak is not None}, figures, letters


def test_every_figure_is_the_sources(subtests):
    """And no preset mixes up two columns: fp32 ≤ tf32 ≤ bf16 = fp16 ≤ fp8 ≤ int8."""
    assert list(ACCELERATORS) == [name for name, *_ in sourced()]
    for name, peaks, figures, letters in sourced():
        with subtests.test(name):
            accelerator = ACCELERATORS[name]
            assert accelerator.name == name
            assert accelerator.peak_flops == pytest.approx({d: 1e12 * p for d, p in peaks.items()})
            assert accelerator.memory_bytes == 1e9 * figures["memory"]
            assert accelerator.bandwidth == 1e9 * figures["bandwidth"]
            link, shared = figures["link"], figures["shared"]
            assert accelerator.link_bandwidth == (None if link is None else 1e9 * link)
            assert accelerator.shared_memory_bytes == (None if shared is None else 1024 * shared)
            assert all(SOURCES[letter] in accelerator.source for letter in letters)
            kinds = dict.fromkeys(VENDOR, "vendor")
            kinds |= dict.fromkeys(FROM_MEMORY, "partly from memory")
            assert accelerator.confidence == kinds.get(name, "secondary")
            narrower = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
            order = [accelerator.peak_flops[d] for d in narrower if d in accelerator.peak_flops]
            assert order == sorted(order)


def test_a_preset_is_made_from_the_units_of_data_sheets():
    """Tera, giga and kibi; one rate for both formats of 16 bits; the memory has a source."""
    sheet = {"fp32": 1.5, "half": 3, "int8": 6}
    made = _accelerator("mine", sheet, 16, 200, 25, "vendor", "a sheet", 64)
    peaks = {"fp32": 1.5e12, "int8": 6e12, "bf16": 3e12, "fp16": 3e12}
    source = f"a sheet; shared memory: {SOURCES['o']}, compute capabilities"
    assert made == Accelerator("mine", peaks, 200e9, 16e9, 25e9, source, "vendor", 65_536)
    bare = _accelerator("bare", {"half": 3}, 16, 200, None, "secondary", "a sheet")
    peaks = {"bf16": 3e12, "fp16": 3e12}
    assert bare == Accelerator("bare", peaks, 200e9, 16e9, None, "a sheet", "secondary", None)


def test_h100_ridge_point():
    """989e12 / 3.35e12; the FLOP/s printed with sparsity would double it. Nobody named: bf16."""
    h100 = ACCELERATORS["H100-SXM"]
    assert h100.peak() == h100.peak("bf16") != h100.peak("fp32")
    assert round(h100.ridge_point(), 2) == 295.22
    assert round(h100.ridge_point("fp8")) == 591
    assert abs(1979e12 / h100.bandwidth - 2 * h100.ridge_point()) < 1


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


def test_any_positive_figure_will_do():
    """Less than one, too; and a link of one's own has no latency unless it is said."""
    slow = Accelerator("slow", {"bf16": 0.5}, 0.25, 0.5, 0.5, shared_memory_bytes=1)
    assert slow.ridge_point() == 2
    assert Link("wire", 0.5).latency_s == 0.0
    assert Link("wire", 0.5, 0.25).latency_s == 0.25


def test_rates_that_cannot_be(subtests):
    with pytest.raises(ValueError, match=r"dtype 'fp8' has no peak rate on A100-80GB; .*bf16"):
        ACCELERATORS["A100-80GB"].ridge_point("fp8")
    for arguments, name in [
        (({"bf16": 0}, 1, 1), r"peak_flops\['bf16'\]"),
        (({"bf16": 1}, -1, 1), "bandwidth"),
        (({"bf16": 1}, 1, 0), "memory_bytes"),
        (({"bf16": 1}, 1, 1, 0), "link_bandwidth"),
        (({"bf16": 1}, 1, 1, None, "", "", 0), "shared_memory_bytes"),
    ]:
        with subtests.test(name), pytest.raises(ValueError, match=f"^{name} must be positive"):
            Accelerator("mine", *arguments)
    for bandwidth, latency_s, name in ((0, 0, "band"), (1, -1, "late"), (float("nan"), 0, "band")):
        with subtests.test(name), pytest.raises(ValueError, match=name):
            Link("wire", bandwidth, latency_s)


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


def test_links_are_the_sources_and_devices_have_those_of_the_table():
    assert {link.name: (link.bandwidth, link.latency_s) for link in LINKS.values()} == {
        name: (bandwidth, pytest.approx(us * 1e-6)) for name, (bandwidth, us) in LINKED.items()
    }
    assert all("NCCL" in link.source for link in LINKS.values())
    linked = {"A100-80GB": "NVLink-3", "L40S": "PCIe-4", "L4": "PCIe-4", "H100-PCIe": "PCIe-5"}
    linked |= dict.fromkeys(("H100-SXM", "H200-SXM"), "NVLink-4")
    for device, link in (linked | dict.fromkeys(("B200", "GB200"), "NVLink-5")).items():
        assert ACCELERATORS[device].link_bandwidth == LINKS[link].bandwidth, device
