"""hardware: presets against the balance points that follow from the published figures."""

import dataclasses

import pytest

from firsttoken.hardware import ACCELERATORS, Accelerator

# bf16 FLOP per byte, rounded, computed from the sources apart from the presets.
BALANCE = {
    "A100-80GB": 153,
    "H100-SXM": 295,
    "H100-PCIe": 378,
    "H200-SXM": 206,
    "B200": 281,
    "GB200": 312,
    "L4": 403,
    "L40S": 419,
    "RTX-3090": 76,
    "RTX-4090": 164,
    "MI300X": 247,
    "TPU-v5e": 241,
    "TPU-v5p": 166,
    "TPU-v6e": 560,
    "M1": 38,
    "M1-Max": 26,
    "M2-Ultra": 34,
    "M3-Max": 35,
}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_presets_balance_where_the_sources_say(name):
    accelerator = ACCELERATORS[name]
    assert abs(accelerator.ridge_point() - BALANCE[name]) <= 0.6  # 35.5 and 312.5 are halves
    assert accelerator.name == name
    assert accelerator.source
    assert accelerator.confidence in ("vendor", "secondary", "partly from memory")


def test_every_device_that_was_sourced_is_there():
    assert set(ACCELERATORS) == set(BALANCE)


def test_h100_ridge_point():
    """989e12 / 3.35e12; the FLOP/s printed with sparsity would double it."""
    h100 = ACCELERATORS["H100-SXM"]
    assert round(h100.ridge_point(), 2) == 295.22
    assert round(h100.ridge_point("fp8")) == 591
    assert abs(1979e12 / h100.bandwidth - 2 * h100.ridge_point()) < 1


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
    ],
)
def test_rates_that_cannot_be(arguments, name):
    with pytest.raises(ValueError, match="must be positive") as error:
        Accelerator("mine", *arguments)
    assert name in str(error.value)
