"""What the calculator's page shows: the form, the results and the picture, as HTML.

The site's build calls this for the example that the page opens with, and the page itself calls it
again, in Pyodide, whenever the reader changes something: so both say the same, and no formula
stands anywhere but in the library. Only the standard library and closed forms are imported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape

from firsttoken.architectures import Architecture
from firsttoken.architectures.released import RELEASED
from firsttoken.calculator import (
    Plan,
    kept_by_layers,
    plan,
    read_config,
    read_weights,
    released_weights_bytes,
    what_limits,
)
from firsttoken.calculator import format_size as size
from firsttoken.hardware import ACCELERATORS, Accelerator
from firsttoken.units import BYTES, format_bytes, format_count, format_time

START = {
    "model": "Llama-3.1-8B",
    "config": "",
    "accelerator": "H100-SXM",
    "n_devices": "1",
    "batch": "32",
    "context": "8192",
    "dtype": "bf16",
    "kv_dtype": "bf16",
    "dollars_per_hour": "",
}
"""The settings by name, as the form sends them: text."""

OWN = "config"  # in the menu of models: the pasted one
N_DEVICES = (1, 2, 4, 8, 16)  # layers are split by halves
FIELD_OF = {name: name for name in START} | {"n": "n_devices"}  # by what an error begins with
MODEL_SAYS = {
    "memory": "All weights and the cache are read once.",
    "roofline": "What is read and what is multiplied, overlapping perfectly.",
    "layers": "Linear layers, experts and attention one after another.",
}
WIDTH, HEIGHT = 330, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 320, 22, 176  # the edges of the plot within it


# Answers.


def answer(text: str) -> str:
    """Return, as JSON, the results for settings in JSON, or what is wrong with which field."""
    settings = START | json.loads(text)
    try:
        arch = architecture(settings)
    except ValueError as error:
        return json.dumps({"field": "config" if settings["model"] == OWN else "model"} | say(error))
    try:
        accelerator = device(settings["accelerator"])
        found = found_for(arch, accelerator, settings)
        answer = {"results": results(arch, accelerator, found, settings)}
        return json.dumps(answer | {"summary": summary(found)})
    except (ValueError, OverflowError) as error:
        return json.dumps({"field": FIELD_OF.get(str(error).split()[0], "")} | say(error))


def say(error: Exception) -> dict[str, str]:
    return {"problem": str(error)}


def architecture(settings: Mapping[str, str]) -> Architecture:
    name = settings["model"]
    if name == OWN:
        return read_config(settings["config"])
    if name not in RELEASED:
        raise ValueError(f"model {name!r} is unknown; expected one of {', '.join(RELEASED)}")
    return RELEASED[name]


def device(name: str) -> Accelerator:
    if name not in ACCELERATORS:
        raise ValueError(
            f"accelerator {name!r} is unknown; expected one of {', '.join(ACCELERATORS)}"
        )
    return ACCELERATORS[name]


def found_for(arch: Architecture, accelerator: Accelerator, settings: Mapping[str, str]) -> Plan:
    """Ask the library; what is no number goes there as it is, so that it says what is wrong."""
    n_devices, batch, context = (
        whole(settings[name]) for name in ("n_devices", "batch", "context")
    )
    if settings["kv_dtype"] not in BYTES:
        raise ValueError(
            f"kv_dtype {settings['kv_dtype']!r} is unknown; expected one of {', '.join(BYTES)}"
        )
    return plan(
        arch,
        accelerator,
        n_devices,
        batch,
        context,
        settings["dtype"],
        settings["kv_dtype"],
        price(settings["dollars_per_hour"]),
    )


def whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text


def price(text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise ValueError(f"dollars_per_hour must be a number, got {text!r}") from None


# The form.


def page(place: str = "", total_bytes: int = 0, packed_bytes: int = 0) -> str:
    """Return the calculator: the form, and the example that its first settings give.

    `place` is where the scripts lie, seen from the page; without them only the example is shown.
    `total_bytes` is what they load when the reader asks for it, `packed_bytes` what of it travels.
    """
    arch, accelerator = architecture(START), device(START["accelerator"])
    found = found_for(arch, accelerator, START)
    example = (
        f'<div class="ft-results" id="ft-results">{results(arch, accelerator, found, START)}</div>'
    )
    if not place:
        return f'<div class="ft-calculator">{example}</div>'
    return (
        f'<link rel="stylesheet" href="{place}calculator.css">'
        f'<div class="ft-calculator" data-bytes="{total_bytes}">'
        f"{form(packed_bytes)}{example}</div>"
        f'<script type="module" src="{place}calculator.js"></script>'
    )


def form(packed_bytes: int) -> str:
    models = [(name, name) for name in sorted(RELEASED, key=str.lower)] + [
        (OWN, "a config.json of your own")
    ]
    devices = [(name, device_label(device)) for name, device in ACCELERATORS.items()]
    counts = [(str(n), str(n)) for n in N_DEVICES]
    formats = [(name, name) for name in BYTES if name != "tf32"]  # that one is stored as fp32
    return (
        '<form class="ft-form" novalidate>'
        + field("model", "Model", menu("model", models))
        + field("accelerator", "Device", menu("accelerator", devices))
        + field(
            "config",
            "Paste a config.json (Hugging Face)",
            '<textarea id="ft-config" name="config" rows="6" spellcheck="false" '
            'autocapitalize="off" aria-describedby="ft-config-problem"></textarea>',
        )
        + field("n_devices", "Devices (each layer is split among them)", menu("n_devices", counts))
        + field(
            "dollars_per_hour",
            "Price of one device, $ per hour",
            '<input id="ft-dollars_per_hour" name="dollars_per_hour" type="text" '
            'inputmode="decimal" autocomplete="off" '
            'aria-describedby="ft-price-hint ft-dollars_per_hour-problem">'
            '<p class="ft-hint" id="ft-price-hint">Empty: no cost. For comparison, on Google Cloud '
            "in February 2025, as the JAX scaling book counts: H100 $10.80, TPU v5p $4.20, "
            "TPU v5e $1.20.</p>",
        )
        + field("batch", "Batch (requests at once)", number("batch", 0, 12))
        + field("context", "Context (tokens per request)", number("context", 7, 20))
        + field("dtype", "Format of the weights", menu("dtype", formats))
        + field("kv_dtype", "Format of the cache", menu("kv_dtype", formats))
        + '<div class="ft-actions"><button type="submit">Calculate</button>'
        '<button type="button" class="ft-copy" hidden>Copy a link to this result</button>'
        f'<p class="ft-hint ft-note">Loads Python into this page once, '
        f"{format_bytes(packed_bytes, 'MB', 1)}. What you enter stays in your browser.</p>"
        '<progress max="1" value="0" aria-label="Loading" hidden></progress></div>'
        '<p class="ft-status" role="status" aria-live="polite"></p></form>'
    )


def device_label(accelerator: Accelerator) -> str:
    memory = format_bytes(accelerator.memory_bytes, "GB", 0)
    return f"{accelerator.name} ({memory}, {format_bytes(accelerator.bandwidth, 'GB', 0)}/s)"


def field(name: str, label: str, control: str) -> str:
    hidden = " hidden" if name == "config" else ""
    return (
        f'<div class="ft-field" data-field="{name}"{hidden}>'
        f'<label for="ft-{name}">{label}</label>{control}'
        f'<p class="ft-problem" id="ft-{name}-problem" hidden></p></div>'
    )


def menu(name: str, choices: Sequence[tuple[str, str]]) -> str:
    options = "".join(
        f'<option value="{value}"{" selected" if value == START[name] else ""}>{label}</option>'
        for value, label in choices
    )
    return (
        f'<select id="ft-{name}" name="{name}" aria-describedby="ft-{name}-problem">'
        f"{options}</select>"
    )


def number(name: str, least: int, most: int) -> str:
    """A number, and a slider that goes through powers of two."""
    start = START[name]
    label = {"batch": "Batch, in doublings", "context": "Context, in doublings"}[name]
    return (
        f'<div class="ft-number"><input id="ft-{name}" name="{name}" type="text" '
        f'inputmode="numeric" autocomplete="off" value="{start}" '
        f'aria-describedby="ft-{name}-problem">'
        f'<input type="range" min="{least}" max="{most}" step="1" data-of="{name}" '
        f'value="{round(math.log2(int(start)))}" aria-label="{label}" '
        f'aria-valuetext="{start}"></div>'
    )


# The results.


def results(
    arch: Architecture, accelerator: Accelerator, found: Plan, settings: Mapping[str, str]
) -> str:
    n_devices, batch, context = (int(settings[name]) for name in ("n_devices", "batch", "context"))
    step, capacity = found.steps["layers"], accelerator.memory_bytes
    verdict = "Fits" if found.fits else "Does not fit"
    each = "" if n_devices == 1 else f" on each of {n_devices} devices"
    trained = (
        ""
        if arch.max_context is None
        else f"<small>The model is made for {arch.max_context:,} tokens.</small>"
    )
    longest = "memory sets no limit" if found.max_context is None else f"{found.max_context:,}"
    # What a model would do if memory held it is worth knowing, but no answer.
    if_held = "" if found.fits else ", if it fitted"
    facts = [
        ("Largest batch at this context", f"{found.max_batch:,}"),
        ("Largest context at this batch", f"{longest}{trained}"),
        (f"One step, at least{if_held}", format_time(step.step_s)),
        (f"Tokens per second, at most{if_held}", rate(step.tokens_per_s)),
        (f"Tokens per second of one request{if_held}", rate(1 / step.step_s)),
        (f"Reading a prompt of {context:,}, at least{if_held}", format_time(found.prefill_s)),
    ]
    if found.dollars_per_million is not None:
        cost = dollars(found.dollars_per_million["layers"])
        facts.append((f"A million output tokens, at least{if_held}", cost))
    shape = (
        f"{escape(arch.name)}, {format_count(arch.n_params)} parameters, on {n_devices} × "
        f"{accelerator.name}: batch {batch:,}, context {context:,}, "
        f"weights in {settings['dtype']}, cache in {settings['kv_dtype']}, "
        f"products in {found.compute_dtype}"
    )
    return (
        f'<p class="ft-verdict" data-fits="{str(found.fits).lower()}"><strong>{verdict}: '
        f"{size(found.device_bytes)} of {size(capacity)}{each}</strong>"
        f"{advice(arch, accelerator, found, context)}</p>"
        f'<p class="ft-shape">{shape}. {what_limits(found)}</p>'
        + notes(arch, settings)
        + layers(arch)
        + '<dl class="ft-facts">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
        + "</dl>"
        + speed_table(found)
        + memory_table(found, n_devices, capacity)
        + '<div class="ft-pictures">'
        + picture("batch", found.cache_by_batch, found, n_devices * capacity, batch)
        + picture("context", found.cache_by_context, found, n_devices * capacity, context)
        + "</div>"
    )


def advice(arch: Architecture, device: Accelerator, found: Plan, context: int) -> str:
    """Return what the verdict does not say: what would fit, and what the model is not made for."""
    said = []
    if not found.fits and device.link_bandwidth is not None:  # else they cannot split a model
        enough = next((n for n in N_DEVICES if n >= found.min_devices), found.min_devices)
        said.append(f"{enough:,} devices would hold it.")
    if not found.fits and found.max_batch:
        said.append(f"A batch of {found.max_batch:,} would fit.")
    if arch.max_context is not None and context > arch.max_context:
        said.append(f"The model is made for {arch.max_context:,} tokens, not for {context:,}.")
    return "".join(f"<small>{sentence}</small>" for sentence in said)


def notes(arch: Architecture, settings: Mapping[str, str]) -> str:
    """Return what the numbers leave out, where that matters."""
    said, dtype = [], settings["dtype"]
    if dtype in ("int8", "fp8", "int4"):
        released = size(released_weights_bytes(arch, dtype))
        grouped = ", and int4 adds a scale and a zero point to each 128 codes"
        said.append(
            f"Every weight is counted in {dtype}. A file as released takes {released}: "
            f"embedding, output and norms stay in 16 bits{grouped if dtype == 'int4' else ''}."
        )
    if settings["model"] == OWN:
        if arch.source:
            said.append(f"{escape(arch.source[0].upper() + arch.source[1:])}.")
        released = read_weights(settings["config"], arch)
        said.append(f"Its files take {size(released.n_bytes)} ({escape(released.says)}).")
    return "".join(f'<p class="ft-shape">{sentence}</p>' for sentence in said)


KINDS = ("all tokens", "a window", "a chunk", "another layer's", "a state", "nothing")


def layers(arch: Architecture) -> str:
    """Draw the model as its layers, first to last, coloured by what each keeps."""
    runs, done, parts, told = kept_by_layers(arch), 0, [], {}
    for kept, count in runs:
        left, width = WIDTH * 2 * done / arch.n_layers, WIDTH * 2 / arch.n_layers
        for i in range(count):
            parts.append(
                f'<rect class="ft-keeps" data-keeps="{kind_of(kept)}" x="{left + i * width:.2f}" '
                f'y="0" width="{max(width - 1, width * 0.8):.2f}" height="18"/>'
            )
        done += count
        told[kept] = told.get(kept, 0) + count
    legend = "".join(
        f'<span class="ft-key" data-keeps="{kind_of(kept)}">{count} × {escape(kept)}</span>'
        for kept, count in told.items()
    )
    alt = "; ".join(f"{count} × {escape(kept)}" for kept, count in told.items())
    return (
        f'<figure class="ft-layers"><svg role="img" aria-label="What each layer keeps: {alt}" '
        f'viewBox="0 0 {WIDTH * 2} 18" preserveAspectRatio="none">{"".join(parts)}</svg>'
        f"<figcaption>What each layer keeps, first to last: {legend}</figcaption></figure>"
    )


def kind_of(kept: str) -> str:
    """Return the colour's name of what a layer keeps."""
    if "a state" in kept and "and" in kept:
        return "both"
    return next(kind for kind in KINDS if kept.startswith(kind)).removeprefix("a ").split()[0]


def summary(found: Plan) -> str:
    """What a screen reader announces after a change."""
    step = found.steps["layers"]
    return (
        f"{'Fits' if found.fits else 'Does not fit'}: {size(found.device_bytes)} per device. "
        f"Largest batch {found.max_batch:,}. {format_time(step.step_s)} per step, "
        f"{rate(step.tokens_per_s)} tokens per second."
    )


def speed_table(found: Plan) -> str:
    priced = found.dollars_per_million
    head = ["Counting", "Step", "Tokens/s"] + ["$ per million"] * (priced is not None)
    rows = []
    for model, step in found.steps.items():
        row = [f"{model}<small>{MODEL_SAYS[model]}</small>"]
        row += [format_time(step.step_s), rate(step.tokens_per_s)]
        row += [] if priced is None else [dollars(priced[model])]
        rows.append(row)
    return table("How fast, by the models of chapter 05: bounds, no promises", head, rows)


def memory_table(found: Plan, n_devices: int, capacity: float) -> str:
    together = found.weights_bytes + found.cache_bytes + found.state_bytes
    parts = [("Weights", found.weights_bytes), ("Cache", found.cache_bytes)]
    parts += [("States", found.state_bytes)] if found.state_bytes else []
    parts += [("Together", together), ("Memory", n_devices * capacity)]
    rows = [[name, size(n_bytes), size(n_bytes, "iB")] for name, n_bytes in parts]
    devices = "one device" if n_devices == 1 else f"all {n_devices} devices together"
    head = ["", "Decimal (10³)", "Binary (2¹⁰)"]
    return table(f"What memory holds, {devices}", head, rows)


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f'<th scope="col">{cell}</th>' if cell else "<td></td>" for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<table class="ft-table"><caption>{caption}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    )


def rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def dollars(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 or amount == 0 else f"${amount:.2g}"


# The picture.


def picture(
    axis: str,
    corners: Sequence[tuple[int, float]],
    found: Plan,
    memory_bytes: float,
    asked: int,
) -> str:
    """Return weights and cache stacked over batch or context, and the line where memory ends."""
    end, top_bytes = corners[-1][0], max(memory_bytes, found.weights_bytes + corners[-1][1]) * 1.08

    def x(at: float) -> float:
        return round(LEFT + (RIGHT - LEFT) * at / end, 1)

    def y(n_bytes: float) -> float:
        return round(BOTTOM - (BOTTOM - TOP) * n_bytes / top_bytes, 1)

    base, wall = y(found.weights_bytes), y(memory_bytes)
    line = " ".join(f"{x(at)},{y(found.weights_bytes + cache)}" for at, cache in corners)
    asked_bytes = found.weights_bytes + found.cache_bytes + found.state_bytes
    now = y(asked_bytes)
    parts = [
        f'<rect class="ft-weights" x="{LEFT}" y="{base}" width="{RIGHT - LEFT}" '
        f'height="{round(BOTTOM - base, 1)}"/>',
        f'<polygon class="ft-cache" points="{LEFT},{base} {line} {RIGHT},{base}"/>',
        *(
            f'<path class="ft-grid" d="M{LEFT} {y(tick)}H{RIGHT}"/>'
            f'<text x="{LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{tick / 1e9:,g}</text>'
            for tick in ticks(top_bytes)
        ),
        *(
            f'<text x="{x(tick)}" y="{BOTTOM + 17}" text-anchor="middle">{short(tick)}</text>'
            for tick in ticks(end)
        ),
        f'<path class="ft-axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>',
        # What does not fit is pale, and the line keeps apart from what it crosses.
        f'<rect class="ft-beyond" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" '
        f'height="{round(wall - TOP, 1)}"/>',
        f'<path class="ft-around" d="M{LEFT} {wall}H{RIGHT}"/>',
        f'<path class="ft-wall" d="M{LEFT} {wall}H{RIGHT}"/>',
        f'<path class="ft-now" d="M{x(asked)} {BOTTOM}V{now}"/>',
        f'<circle class="ft-now" cx="{x(asked)}" cy="{now}" r="4.5"/>',
        f'<text x="{LEFT - 6}" y="{TOP - 10}" text-anchor="end">GB</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{AXES[axis]}</text>',
    ]
    largest = {"batch": found.max_batch, "context": found.max_context}[axis]
    limit = "Memory sets no limit." if largest is None else f"The largest that fits is {largest:,}."
    alt = (
        f"Memory against the {axis}: weights of {size(found.weights_bytes)}, and a cache on top "
        f"that grows to {size(corners[-1][1])} at {end:,}. Memory ends at {size(memory_bytes)}. "
        f"Asked for: {asked:,}, which takes {size(asked_bytes)}. "
        f"{limit}"
    )
    return (
        f'<figure><svg role="img" aria-label="{alt}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"{''.join(parts)}</svg>"
        '<figcaption><span class="ft-key ft-key-weights">weights</span>'
        '<span class="ft-key ft-key-cache">cache</span>'
        f'<span class="ft-key ft-key-wall">memory: {size(memory_bytes)}</span>'
        f'<span class="ft-key ft-key-now">asked for: {asked:,}</span></figcaption></figure>'
    )


AXES = {"batch": "batch", "context": "context (tokens per request)"}


def ticks(end: float) -> list[float]:
    """Return three to seven round numbers up to `end`."""
    power = 10 ** math.floor(math.log10(end / 3))
    step = max(power * factor for factor in (1, 2, 5) if power * factor <= end / 3)
    return [step * i for i in range(1, int(end / step) + 1)]


def short(n: float) -> str:
    """Return a round number for an axis."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if n >= unit:
            return f"{n / unit:g}{letter}"
    return f"{n:g}"
