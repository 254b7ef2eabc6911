"""hardware: presets against the balance points that follow from the published figures."""

import pytest

from firsttoken.hardware import ACCELERATORS, LINKS, Accelerator, Link

# Typed from the sources, apart from the presets: dense peaks in 10**12 per second, memory in GB,
# bandwidth and one direction of the link in GB/s, shared memory of an SM in KiB. bf16
# and fp16 have one rate. Vendors print more where half of the entries are zero, and both directions
# of a link.
SOURCED = """
              fp32    tf32    bf16     fp8    int8  memory  bandwidth   link  shared
A100-80GB     19.5     156     312       -     624      80       2039    300     164
H100-SXM      66.9   494.7   989.4  1978.9  1978.9      80       3350    450     228
H100-PCIe     51.2     378     756    1513    1513      80       2000     64     228
H200-SXM      66.9   494.7   989.4  1978.9  1978.9     141       4800    450     228
B200            80    1125    2250    4500    4500     180       8000    900     228
GB200           80    1250    2500    5000    5000     186       8000    900     228
L4            30.3      60     121     242     242      24        300     32     100
L40S          91.6     183     362     733     733      48        864     32     100
RTX-3090      35.6    35.6      71       -     284      24      936.2  56.25     100
RTX-4090      82.6    82.6   165.2   330.3   660.6      24       1008     32     100
MI300X       163.4   653.7  1307.4  2614.9  2614.9     192       5300    448       -
TPU-v5e          -       -     197       -     393      16        819    200       -
TPU-v5p          -       -     459     459     918      95       2765    600       -
TPU-v6e          -       -     918     918    1836      32       1638    400       -
M1             2.6       -     2.6       -       -      16      68.25      -       -
M1-Max        10.4       -    10.4       -       -      64        400      -       -
M2-Ultra      27.2       -    27.2       -       -     192        800      -       -
M3-Max        14.2       -    14.2       -       -     128        400      -       -
"""
# The one figure that is not the sources': what the literature on the H100 computes with.
ROUNDED = {"989.4": "989"}


def sourced():
    """Yield name, peaks and the other figures of each device in the table."""
    head, *rows = (line.split() for line in SOURCED.strip().splitlines())
    for name, *texts in rows:
        numbers = [None if x == "-" else float(ROUNDED.get(x, x)) for x in texts]
        figures = dict(zip(head, numbers, strict=True))
        peaks = {d: figures.pop(d) for d in ("fp32", "tf32", "bf16", "fp8", "int8")}
        peaks["fp16"] = peaks["bf16"]
        yield name, {d: peak for d, peak in peaks.items() if peak is not None}, figures


def test_every_figure_is_the_sources(subtests):
    """And no preset mixes up two columns: fp32 ≤ tf32 ≤ bf16 = fp16 ≤ fp8 ≤ int8."""
    assert list(ACCELERATORS) == [name for name, *_ in sourced()]
    for name, peaks, figures in sourced():
        with subtests.test(name):
            accelerator = ACCELERATORS[name]
            assert accelerator.name == name
            assert accelerator.peak_flops == pytest.approx({d: 1e12 * p for d, p in peaks.items()})
            assert accelerator.memory_bytes == 1e9 * figures["memory"]
            assert accelerator.bandwidth == 1e9 * figures["bandwidth"]
            link, shared = figures["link"], figures["shared"]
            assert accelerator.link_bandwidth == (None if link is None else 1e9 * link)
            assert accelerator.shared_memory_bytes == (None if shared is None else 1024 * shared)
            assert accelerator.source and accelerator.confidence
            assert (shared is None) != ("CUDA C++ Programming Guide" in accelerator.source)
            narrower = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")
            order = [accelerator.peak_flops[d] for d in narrower if d in accelerator.peak_flops]
            assert order == sorted(order)


def test_h100_ridge_point():
    """989e12 / 3.35e12; the FLOP/s printed with sparsity would double it. Nobody named: bf16."""
    h100 = ACCELERATORS["H100-SXM"]
    assert h100.peak() == h100.peak("bf16") != h100.peak("fp32")
    assert round(h100.ridge_point(), 2) == 295.22
    assert round(h100.ridge_point("fp8")) == 591
    assert abs(1979e12 / h100.bandwidth - 2 * h100.ridge_point()) < 1


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


def test_an_accelerator_keeps_its_rates_whatever_becomes_of_the_dict():
    peaks = {"bf16": 1.0}
    mine = Accelerator("mine", peaks, 1, 1)
    peaks["bf16"] = 2.0
    assert mine.peak() == 1.0


def test_a_link_without_latency():
    assert Link("ideal", 1.0).latency_s == 0


def test_devices_have_the_links_of_the_table():
    linked = {"A100-80GB": "NVLink-3", "L40S": "PCIe-4", "L4": "PCIe-4", "H100-PCIe": "PCIe-5"}
    linked |= dict.fromkeys(("H100-SXM", "H200-SXM"), "NVLink-4")
    for device, link in (linked | dict.fromkeys(("B200", "GB200"), "NVLink-5")).items():
        assert ACCELERATORS[device].link_bandwidth == LINKS[link].bandwidth, device
