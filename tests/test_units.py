"""units: figures that the whole book divides by."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.units import (
    BYTES,
    GB,
    GIB,
    bytes_per_element,
    format_bytes,
    format_count,
    format_time,
)


def test_known_sizes():
    """A ggml block is 32 codes and one fp16 scale."""
    assert (GB, GIB) == (10**9, 1024**3)
    assert [BYTES[d] for d in ("fp32", "tf32", "bf16", "fp16")] == [4, 4, 2, 2]
    assert [BYTES[d] for d in ("fp8", "int8", "int4")] == [1, 1, 0.5]
    assert BYTES["q8_0"] == (32 * 1 + 2) / 32
    assert BYTES["q4_0"] == (32 * 0.5 + 2) / 32
    with pytest.raises(TypeError):
        BYTES["bf16"] = 3


def test_unknown_names_are_errors_that_list_the_known_ones():
    with pytest.raises(ValueError, match=r"dtype 'float16' is unknown.*fp16.*q4_0"):
        bytes_per_element("float16")
    with pytest.raises(ValueError, match=r"unit 'Gb' is unknown.*GB"):
        format_bytes(1, "Gb")


def test_gb_and_gib_differ():
    five_gib = 5 * GIB
    assert format_bytes(five_gib, "GiB") == "5.00 GiB"
    assert format_bytes(five_gib, "GB") == "5.37 GB"
    assert format_bytes(819_200, "KiB", 0) == "800 KiB"
    assert format_bytes(1536, "B") == "1,536 B"


def test_each_unit_is_a_power():
    for base, units in (
        (1000, ["B", "kB", "MB", "GB", "TB"]),
        (1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
    ):
        for power, unit in enumerate(units):
            assert (
                format_bytes(5 * base**power, unit, 9)
                == ("5" if unit == "B" else "5.000000000") + f" {unit}"
            )


def test_times_and_counts():
    for seconds, text in [
        *[(0, "0.00 s"), (1, "1.00 s"), (0.0237964, "23.8 ms"), (4e-9, "4.00 ns")],
        *[
            (1234.5, "1,234 s"),
            (-0.008, "-8.00 ms"),
            (5e-10, "0.50 ns"),
            (1e-6, "1.00 µs"),
            (9.96, "9.96 s"),
            (9.996, "10.0 s"),
        ],
    ]:
        assert format_time(seconds) == text
    for n, text in [
        *[(0, "0"), (999, "999"), (1000, "1.00 K"), (1_000_000, "1.00 M")],
        *[
            (13_015_864_320, "13.0 B"),
            (671e9, "671 B"),
            (10**9, "1.00 B"),
            (10**12, "1.00 T"),
            (-32_000, "-32.0 K"),
        ],
    ]:
        assert format_count(n) == text


@given(seconds=st.floats(1e-8, 1e4))
def test_a_formatted_time_reads_back_within_its_digits(seconds):
    number, unit = format_time(seconds, digits=4).split()
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number.replace(",", "")) * scale == pytest.approx(seconds, rel=5.1e-4)


@given(value=st.floats(1, 999.4), digits=st.integers(3, 6))
def test_a_number_has_as_many_digits_as_were_asked_for(value, digits):
    """Also just below a power of ten: 9.999 is 10.0."""
    for text in format_time(value, digits), format_count(1e3 * value, digits):
        assert len(re.findall(r"\d", text)) == digits, text
