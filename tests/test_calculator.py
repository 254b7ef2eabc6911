"""calculator: it says what the closed forms say, and its lines are right between corners."""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
from calculator import page
from hypothesis import given
from hypothesis import strategies as st

from firsttoken.architectures import ARCHITECTURES, from_hf_config
from firsttoken.calculator import (
    kept_by_layers,
    main,
    plan,
    read_config,
    read_weights,
    released_weights_bytes,
    what_limits,
)
from firsttoken.hardware import ACCELERATORS
from firsttoken.kv_cache import kv_cache_bytes, state_bytes
from firsttoken.parallel import tensor_parallel_step
from firsttoken.throughput import MODELS, cost_per_million_tokens, decode_step, prefill
from firsttoken.units import BYTES

H100, A100, M1 = (ACCELERATORS[name] for name in ("H100-SXM", "A100-80GB", "M1"))
LLAMA_8B = ARCHITECTURES["Llama-3.1-8B"]

architectures = st.sampled_from(list(ARCHITECTURES.values()))
linked = st.sampled_from([a for a in ACCELERATORS.values() if a.link_bandwidth is not None])
batches, contexts = st.integers(1, 600), st.integers(1, 200_000)
devices, formats = st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(list(BYTES))


@given(arch=architectures, accelerator=linked, n=devices, batch=batches, context=contexts)
def test_a_plan_is_what_a_step_says(arch, accelerator, n, batch, context):
    found = plan(arch, accelerator, n, batch, context, dollars_per_hour=2.5)
    assert list(found.steps) == list(MODELS)
    for model, step in found.steps.items():
        expected = tensor_parallel_step(arch, accelerator, n, batch, context, model=model)
        assert step == expected
        assert found.device_bytes == expected.memory_bytes and found.fits == expected.fits
        price = cost_per_million_tokens(expected.tokens_per_s, n * 2.5)
        assert found.dollars_per_million[model] == price
    held = found.weights_bytes + found.cache_bytes + found.state_bytes
    assert held == pytest.approx(n * found.device_bytes)


@given(
    arch=architectures,
    accelerator=linked,
    n=devices,
    batch=batches,
    context=contexts,
    dtypes=st.tuples(formats, formats),
)
def test_largest_is_where_fitting_ends(arch, accelerator, n, batch, context, dtypes):
    found = plan(arch, accelerator, n, batch, context, *dtypes)
    assert found.fits == (batch <= found.max_batch) == (n >= found.min_devices)
    if found.max_batch:
        assert plan(arch, accelerator, n, found.max_batch, context, *dtypes).fits
    assert not plan(arch, accelerator, n, found.max_batch + 1, context, *dtypes).fits
    if found.max_context:
        assert plan(arch, accelerator, n, batch, found.max_context, *dtypes).fits
    if any(layer.growth for layer in arch.layers):  # else the cache stops growing
        assert found.fits == (context <= found.max_context)
        assert not plan(arch, accelerator, n, batch, found.max_context + 1, *dtypes).fits


@given(arch=architectures, accelerator=linked, batch=batches, context=contexts, fmt=formats)
def test_lines_hold_between_their_corners(arch, accelerator, batch, context, fmt):
    found = plan(arch, accelerator, 1, batch, context, kv_dtype=fmt)
    by_context, by_batch = found.cache_by_context, found.cache_by_batch

    def kept(n_tokens, n_requests):
        return kv_cache_bytes(arch, n_tokens, n_requests, fmt) + state_bytes(arch, n_requests, fmt)

    for corners, asked, largest, cache in (
        (by_context, context, found.max_context or 0, lambda n: kept(n, batch)),
        (by_batch, batch, found.max_batch, lambda n: kept(context, n)),
    ):
        places, sizes = zip(*corners, strict=True)
        # Far enough to see the wall, and not so far that it stands at the picture's left edge.
        assert places[0] == 0 and max(asked, largest) < places[-1] <= 1.5 * max(asked, largest) + 1
        assert list(places) == sorted(set(places))
        for at in {asked, largest, *np.linspace(0, places[-1], 7, dtype=int).tolist()}:
            assert cache(at) == pytest.approx(np.interp(at, places, sizes), rel=1e-12)


def test_one_device_and_one_request_are_the_closed_forms():
    found = plan(LLAMA_8B, M1, 1, 1, 4096, "q4_0")
    how = {"model": "layers", "compute_dtype": "bf16"}
    assert found.steps["layers"] == decode_step(LLAMA_8B, M1, 1, 4096, "q4_0", **how)
    assert found.prefill_s == prefill(LLAMA_8B, M1, 4096, dtype="q4_0", **how)
    assert found.dollars_per_million is None
    free = plan(LLAMA_8B, M1, 1, 1, 4096, dollars_per_hour=0)
    assert set(free.dollars_per_million.values()) == {0}
    wide = plan(LLAMA_8B, H100, 1, 1, 16, kv_dtype="fp32")
    assert wide.prefill_s == prefill(LLAMA_8B, H100, 16, kv_dtype="fp32", model="layers")


@given(arch=architectures, fmt=formats, kv_fmt=formats)
def test_where_a_device_has_no_rate_it_multiplies_in_bf16(arch, fmt, kv_fmt):
    for accelerator in ACCELERATORS.values():
        found = plan(arch, accelerator, 1, 8, 1024, fmt, kv_fmt)
        assert found.compute_dtype == (fmt if fmt in accelerator.peak_flops else "bf16")
        assert all(step.step_s > 0 for step in found.steps.values())
    # An A100 has none for fp8: half as many bytes of weights, the FLOPs as slow as bf16's.
    short, whole = (plan(LLAMA_8B, A100, 1, 1, 8192, dtype) for dtype in ("fp8", "bf16"))
    assert short.prefill_s == pytest.approx(whole.prefill_s, rel=0.01)


def test_where_memory_sets_no_limit():
    """Every layer has a window, and nothing says what the model was trained for."""
    mistral = ARCHITECTURES["Mistral-7B"]
    free = mistral.replace(max_context=None)
    found = plan(free, H100, 1, 4, 10**6)
    assert found.max_context is None and found.fits
    assert found.cache_by_context[-1][0] > 10**6
    assert plan(mistral, H100, 1, 4, 10**6).max_context == mistral.max_context
    # All windows and the weights have to fit, to the last byte, each in its own format.
    needed = 2 * free.n_params + kv_cache_bytes(free, 4096, 30)
    enough, short = (dataclasses.replace(H100, memory_bytes=n) for n in (needed, needed - 1))
    assert plan(free, enough, 1, 30, 100).max_context is None
    assert plan(free, short, 1, 30, 100).max_context == 4095
    for dtypes in ({"kv_dtype": "fp8"}, {"dtype": "fp8"}):
        assert plan(free, short, 1, 30, 100, **dtypes).max_context is None


def test_a_plan_refuses(subtests):
    arguments = {"arch": LLAMA_8B, "accelerator": H100, "n_devices": 1, "batch": 8, "context": 64}
    for changes, words in [
        ({"n_devices": 0}, "n_devices must be an integer of at least 1, got 0"),
        ({"batch": 0}, "batch must be an integer of at least 1, got 0"),
        ({"dtype": "fp7"}, "dtype 'fp7' is unknown"),
        ({"dollars_per_hour": -1}, "dollars_per_hour must not be negative, got -1"),
        ({"dollars_per_hour": math.inf}, "dollars_per_hour must be finite, got inf"),
        ({"accelerator": M1, "n_devices": 2}, "link_bandwidth must be positive, got None"),
    ]:
        with subtests.test(words), pytest.raises(ValueError, match=words):
            plan(**(arguments | changes))


def test_a_pasted_config_is_the_file_and_one_that_says_nothing_is_refused(subtests):
    config = {"model_type": "mixtral", "num_hidden_layers": 4, "vocab_size": 1000}
    assert read_config(json.dumps(config)) == from_hf_config(config)
    many = '{"model_type": "llama", "num_hidden_layers": 1000000000}'
    for text, words in [
        ("", "config is empty, expected the content of a config.json"),
        ('{"model_type": "llama",}', "config is not readable as JSON"),
        ("[" * 100_000, "config is not readable as JSON"),
        ("[1, 2]", "config holds a list, expected an object"),
        ('{"model_type": "llama", "hidden_size": -1}', "hidden_size must be a positive integer"),
        (many, "num_hidden_layers must be at most 10,000, got 1000000000"),
        (f'{{"num_hidden_layers": {"9" * 5000}}}', "config is not readable as JSON"),
    ]:
        with subtests.test(words), pytest.raises(ValueError, match=re.escape(words)):
            read_config(text)


# --- what the page of the website writes


UNITS = {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20, "s": 1, "ms": 1e-3, "µs": 1e-6}


def printed(html: str) -> list[str]:
    """Return the text of each cell and fact of a page, in order."""
    return [
        re.sub(r"<small>.*?</small>", "", cell)
        for cell in re.findall(r"<(?:dd|td)>(.*?)</(?:dd|td)>", html)
    ]


def value(text: str) -> float:
    """Return what a printed number says, in bytes, seconds, dollars or as it is."""
    number, _, unit = text.strip("$").partition(" ")
    return float(number.replace(",", "")) * UNITS.get(unit, 1)


def test_the_page_prints_what_the_plan_says():
    """Every number of the facts and of both tables, to the digits that are shown."""
    asked = [("Llama-3.1-70B", 8192), ("DeepSeek-V3", 100), ("Gemma-3-27B", 131072)]
    for (model, context), n_devices in itertools.product(asked, (1, 8)):
        settings = page.START | {
            "model": model,
            "context": f"{context}",
            "n_devices": f"{n_devices}",
        }
        answer = page.answer(json.dumps(settings | {"dollars_per_hour": "2.5"}))
        html = json.loads(answer)["results"]
        found = plan(ARCHITECTURES[model], H100, n_devices, 32, context, dollars_per_hour=2.5)
        step, money = found.steps["layers"], found.dollars_per_million
        expected = [found.max_batch, found.max_context, step.step_s, step.tokens_per_s]
        expected += [1 / step.step_s, found.prefill_s, money["layers"]]
        for name in MODELS:
            expected += [found.steps[name].step_s, found.steps[name].tokens_per_s, money[name]]
        together = found.weights_bytes + found.cache_bytes
        for size in (found.weights_bytes, found.cache_bytes, together, n_devices * 80e9):
            expected += [size, size]
        cells = [value(cell) for cell in printed(html) if cell]
        assert cells == pytest.approx(expected, rel=6e-3), model
        verdict = re.search(r"<strong>(.*?): ([\d.,]+ GB) of ([\d.,]+ GB)", html)
        assert verdict[1] == ("Fits" if found.fits else "Does not fit")
        assert value(verdict[2]) == pytest.approx(found.device_bytes, rel=6e-3)
        assert value(verdict[3]) == 80e9


def test_a_wrong_setting_names_its_field():
    """Whatever a link brings."""
    names, bad = ["n_devices", "batch", "context", "dtype", "kv_dtype"], ["", "x", "1e400", "-1"]
    for name, text in itertools.product(names, [*bad, "9" * 400]):
        answer = json.loads(page.answer(json.dumps({name: text})))
        assert set(answer) == {"field", "problem"}
        blamed = name if len(text) < 400 or name.endswith("dtype") else ""
        assert answer["field"] == blamed, (name, text)


def test_what_a_step_waits_for():
    """The three times are those of the roofline; the sentence names the largest."""
    for batch, context, what in [(1, 64, "weights"), (64, 8192, "cache"), (4096, 1, "arithmetic")]:
        found = plan(LLAMA_8B, H100, 1, batch, context)
        step = found.steps["roofline"].step_s
        waits = found.waits
        assert max(waits["weights"] + waits["cache"], waits["arithmetic"]) == pytest.approx(step)
        assert max(waits, key=waits.get) == what
        assert what in what_limits(found).split(":")[0]


def test_layers_are_told_by_what_they_keep():
    of = {name: kept_by_layers(arch) for name, arch in ARCHITECTURES.items()}
    assert of["Llama-3.1-8B"] == [("all tokens", 32)]
    assert of["gpt-oss-20b"] == [("a window of 128", 1), ("all tokens", 1)] * 12
    assert of["DeepSeek-V3"] == [("all tokens, as latents", 61)]
    shared = LLAMA_8B.replace(kv_source=[i - i % 2 for i in range(32)])
    assert kept_by_layers(shared) == [("all tokens", 1), ("another layer's", 1)] * 16
    for name, runs in of.items():
        assert sum(count for _, count in runs) == ARCHITECTURES[name].n_layers
        html = page.layers(ARCHITECTURES[name])
        assert html.count("<rect") == ARCHITECTURES[name].n_layers


def test_the_terminal_says_what_the_page_says(capsys, tmp_path):
    config = {"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = [str(tmp_path), "--batch", "8", "--context", "32768", "--price", "2"]
    found = plan(from_hf_config(config), H100, 1, 8, 32768, dollars_per_hour=2)
    main(asked)
    told = capsys.readouterr().out
    assert f"{found.max_batch:,} at this context" in told
    assert what_limits(found) in told and "fp8: 8 bits" in told
    assert re.search(r"^Files +13.29 GB \(fp8", told, re.M)
    main([*asked, "--json"])
    answers = json.loads(capsys.readouterr().out)
    assert answers["max_batch"] == found.max_batch
    assert answers["steps"]["layers"]["step_s"] == found.steps["layers"].step_s
    for arguments, message in [
        (["nothing.json"], "model must be a config.json.* 'nothing.json'"),
        (["Llama-3.1-8B", "--device", "H1"], "device must be one of .* 'H1'"),
        (["Llama-3.1-8B", "--batch", "0"], "batch must be an integer of at least 1, got 0"),
    ]:
        with pytest.raises(SystemExit):
            main(arguments)
        assert re.search(message, capsys.readouterr().err)


# By hand: Scout caches 48 layers · 2 · 8 · 128 numbers of 2 bytes for 4 · 8,192 tokens, and a
# million tokens cost 4 · 2.5 / 3,600 / 736e-6. Jamba caches 4 layers and 100,000 tokens, and has 28
# states of 8,192 · 16 numbers in fp32, with the last 4 inputs of 8,192 channels in bf16.
TERMINAL = {
    "Llama-4-Scout --batch 4 --price 2.5 --devices 4": """\
Model           Llama-4-Scout, 108 B parameters, 16.1 B of them active
Layers keep     36 × a chunk of 8,192, 12 × all tokens
Weights         215.54 GB
Cache           6.44 GB
Each device     55.50 GB: fits
Largest batch   64 at this context
Largest context 506,736 tokens at this batch
Step            at least 5.44 ms, at most 736 tokens/s
                A step waits for the weights to be read: 4.94 ms, against 481 µs for the cache \
and 40.8 µs for the arithmetic.
Prompt          at least 102 ms
Million tokens  at least $3.78
""",
    "Jamba-1.5-Mini --devices 2 --context 100000": """\
Model           Jamba-1.5-Mini, 51.6 B parameters, 11.8 B of them active
Layers keep     28 × a state, 4 × all tokens
Weights         103.14 GB
Cache           1.64 GB
States          16.52 MB
Each device     52.40 GB: fits
Largest batch   34 at this context
Largest context 3,469,411 tokens at this batch
Step            at least 3.87 ms, at most 259 tokens/s
                A step waits for the weights to be read: 3.62 ms, against 249 µs for the cache \
and 15.3 µs for the arithmetic.
Prompt          at least 1.48 s
""",
}


@pytest.mark.parametrize("arguments", TERMINAL)
def test_the_terminal_line_by_line(arguments, capsys):
    main(arguments.split())
    assert capsys.readouterr().out == TERMINAL[arguments]


def test_what_does_not_fit_is_told_how_many_devices_would_do(capsys):
    main(["Llama-3.1-70B"])
    needed = plan(ARCHITECTURES["Llama-3.1-70B"], H100, 1, 1, 8192).min_devices
    assert f": does not fit, on {needed} it would\n" in capsys.readouterr().out and needed > 1


def test_released_files_keep_what_is_no_matrix_of_a_layer_in_16_bits():
    """Llama-3.1-8B: attention 2 · (4,096 + 1,024) and MLP 3 · 14,336 columns of 4,096, 32 times."""
    matrices = 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
    kept = LLAMA_8B.n_params - matrices
    for dtype, per_weight in (("int8", 1), ("fp8", 1), ("int4", 0.5 + 2.5 / 128), ("bf16", 2)):
        assert released_weights_bytes(LLAMA_8B, dtype) == matrices * per_weight + 2 * kept


def test_an_index_behind_the_config_tells_the_true_size():
    text = json.dumps({"model_type": "llama"}) + "\n" + json.dumps({"metadata": {"total_size": 7}})
    arch = read_config(text)
    assert read_weights(text, arch).n_bytes == 7
    assert page.notes(arch, page.START | {"model": "config", "config": text}).count("0.00 MB") == 1
    with pytest.raises(ValueError, match="total_size; got total_size None"):
        read_weights(text.replace("total_size", "size"), arch)
    with pytest.raises(ValueError, match="20,000,001 characters"):
        read_config(" {" + "a" * 20_000_000)
