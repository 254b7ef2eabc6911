// Chapter 04: keys and values filling up while the model writes, and what a token costs without
// them. The cache is on or off for a whole run; the last run of either kind stays for comparison.
import { button, make, numberField, painter, status, textField, toggle } from "./parts.js";
import { count, figures, legend, median, plural, rateBars, short, writtenText } from "./writing.js";

const MOST_TOKENS = 500;
const ROW_PX = 9; // of a layer's keys, and of its values
const KINDS = { on: "with the cache", off: "without a cache" };

export function cache(root, engine, shared) {
  const arch = engine.arch("target");
  const given = shared.get();
  const runs = {}; // the last one of each kind
  let current = newRun("on", [], given.max_tokens); // the one that is shown
  let handle; // of what is being written
  let busy = false;
  let stopped = false;

  const text = textField("Your text", given.text, (words) => shared.set({ text: words }));
  const length = numberField(
    "Tokens to write",
    { min: 1, max: MOST_TOKENS, value: given.max_tokens },
    (max_tokens) => shared.set({ max_tokens }),
  );
  const keep = toggle("Cache", given.use_cache, (use_cache) => {
    shared.set({ use_cache });
    news.say(switchWords());
  });
  const write = button("Write", () => (busy ? stop() : start()), { primary: true });
  const news = status();
  const output = writtenText((words) => [words]);
  const picture = keptPicture(arch);
  const sizes = byteCount(arch, given.bytes_per_token);
  const times = timeChart();
  const rates = rateComparison();
  const results = make(
    "div",
    { class: "ft-results", hidden: true },
    output.element,
    picture.element,
    sizes.element,
    make("div", { class: "ft-pair" }, times.element, rates.element),
  );
  root.append(
    text.element,
    make("div", { class: "ft-row" }, write, keep.element, length.element),
    news.element,
    results,
  );
  const drawAll = () => {
    output.flush();
    picture.draw(current);
    sizes.draw(current);
    times.draw(runs);
    rates.draw(runs, current);
    if (busy) news.show(`Writing ${KINDS[current.kind]}: ${current.ids.length} tokens.`);
  };
  const paint = painter(drawAll);
  drawAll();
  news.show(switchWords());

  function switchWords() {
    const words = shared.get().use_cache
      ? "Cache on: the keys and values of every token are kept."
      : "Cache off: every step reads the whole text again.";
    return busy ? `From the next text on: ${words}` : words;
  }

  async function start() {
    [busy, stopped] = [true, false];
    write.textContent = "Stop";
    results.hidden = false;
    let outcome;
    try {
      await run();
      outcome = summary(runs, current);
    } catch (error) {
      outcome = error.message;
    }
    handle = undefined;
    busy = false;
    write.textContent = "Write";
    drawAll();
    picture.describe(current);
    times.describe(runs);
    news.say(outcome);
  }

  async function run() {
    const { text: words, use_cache, max_tokens, temperature, seed } = shared.get();
    const { ids } = await engine.tokenize(words);
    const prompt = [arch.eos_id, ...ids]; // a text begins where another one has ended
    const mine = newRun(use_cache ? "on" : "off", prompt, max_tokens);
    // Texts that begin in another way cannot be compared.
    if (current.prompt.join() !== prompt.join()) for (const kind in runs) delete runs[kind];
    current = runs[mine.kind] = mine;
    output.begin(words);
    const asked = { ids: prompt, params: { temperature, seed }, max_tokens, use_cache, top: 0 };
    handle = engine.write(asked, (token) => {
      note(mine, token);
      output.add(token.text);
      paint();
    });
    if (stopped) handle.stop();
    await handle.done;
  }

  function stop() {
    stopped = true;
    handle?.stop();
  }

  shared.onChange((settings) => {
    text.set(settings.text);
    length.set(settings.max_tokens);
    keep.set(settings.use_cache);
  });
  return stop;
}

function newRun(kind, prompt, max_tokens) {
  return {
    kind,
    prompt,
    n_columns: prompt.length + max_tokens,
    ids: [],
    steps: [], // the milliseconds that each token took
    at: [], // and when it came, since the start
    computed: [0, 0], // the positions of the last pass: from, and up to
    n_computed: 0, // positions that went through the model in all passes
    n_again: 0, // those that would have, had every pass read the whole text
    n_cached: 0,
    cache_bytes: 0,
    cache_capacity_bytes: 0,
  };
}

// A pass reads what the cache lacks of the text so far; without a cache, all of it.
function note(run, { id, step_ms, at_ms, n_cached, cache_bytes, cache_capacity_bytes }) {
  const n_text = run.prompt.length + run.ids.length;
  run.computed = [run.n_cached, n_text];
  run.n_computed += n_text - run.n_cached;
  run.n_again += n_text;
  run.ids.push(id);
  run.steps.push(step_ms);
  run.at.push(at_ms);
  Object.assign(run, { n_cached, cache_bytes, cache_capacity_bytes });
}

// Tokens per second, counted from the first token on: that one takes reading the prompt.
function rateOf({ at }) {
  return at.length < 2 ? undefined : (1000 * (at.length - 1)) / (at.at(-1) - at[0]);
}

// One column per position, two rows per layer. Above it a mark over the positions that the last
// pass computed: with the cache one, without it all of them.
function keptPicture(arch) {
  const height = 2 * arch.n_layers;
  const block = (name, y, size) => drawn("rect", { class: `ft-${name}`, x: 0, y, height: size });
  const empty = block("empty", 0, height);
  const prompt = block("prompt", 0, height);
  const written = block("decode", 0, height);
  const computed = block("computed", -1.5, 0.9);
  const columns = drawn("path", { class: "ft-gap", "stroke-width": 0.15 });
  const halves = drawn("path", { class: "ft-gap", "stroke-width": 0.1 });
  const layers = drawn("path", { class: "ft-gap", "stroke-width": 0.4 });
  halves.setAttribute("d", ""); // set with the columns
  const picture = drawn(
    "svg",
    { role: "img", preserveAspectRatio: "none", style: `height: ${ROW_PX * (height + 1.5)}px` },
    ...[empty, prompt, written, columns, halves, layers, computed],
  );
  const names = make("div", { class: "ft-layers", "aria-hidden": "true" });
  for (let layer = 1; layer <= arch.n_layers; layer++) names.append(make("span", {}, `${layer}`));
  const end = make("span");
  const caption = make("p", { class: "ft-note" });
  caption.append("A column is one position; each layer has a row of keys above one of values.");
  const element = make(
    "section",
    { class: "ft-picture" },
    make("p", { class: "ft-heading" }, "What is kept: keys and values"),
    legend({ prompt: "prompt", decode: "written", computed: "computed in this step" }),
    make("div", { class: "ft-layered" }, names, picture),
    make("div", { class: "ft-ends", "aria-hidden": "true" }, make("span", {}, "position 1"), end),
    caption,
  );
  let n_columns = 0;
  const layOut = (n) => {
    n_columns = n;
    picture.setAttribute("viewBox", `0 -1.5 ${n} ${height + 1.5}`);
    empty.setAttribute("width", n);
    columns.setAttribute(
      "d",
      repeated(n - 1, (i) => `M${i + 1} 0v${height}`),
    );
    halves.setAttribute(
      "d",
      repeated(arch.n_layers, (i) => `M0 ${2 * i + 1}h${n}`),
    );
    layers.setAttribute(
      "d",
      repeated(arch.n_layers - 1, (i) => `M0 ${2 * i + 2}h${n}`),
    );
    end.textContent = String(n);
  };
  const draw = (run) => {
    if (run.n_columns !== n_columns) layOut(run.n_columns);
    cover(prompt, 0, Math.min(run.prompt.length, run.n_cached));
    cover(written, run.prompt.length, run.n_cached);
    cover(computed, ...run.computed);
  };
  const describe = ({ n_cached, prompt: ids, n_columns: n, computed: [from, to] }) => {
    const kept = n_cached
      ? `keys and values of ${n_cached} positions are kept, the first ${ids.length} the prompt's`
      : "nothing is kept";
    const words = `${n} columns by ${arch.n_layers} layers: ${kept}; the last step computed`;
    picture.setAttribute("aria-label", `${words} ${plural(to - from, "position")}.`);
  };
  picture.setAttribute("aria-label", "Keys and values of every layer: nothing is kept yet.");
  return { element, draw, describe };
}

// The library's formula, and what lies in the engine's arrays.
function byteCount({ n_layers, n_kv_heads, head_dim }, bytes_per_token) {
  const list = figures({
    formula: "By formula",
    filled: "Filled in the model's arrays",
    allocated: "Allocated for them",
  });
  const numbers = 2 * n_layers * n_kv_heads * head_dim;
  const factors = `2 · ${n_layers} layers · ${n_kv_heads} KV heads · ${head_dim}`;
  const draw = ({ n_cached, cache_bytes, cache_capacity_bytes }) => {
    const bytes = bytes_per_token * n_cached;
    const product = `${factors} · ${plural(n_cached, "token")} · ${bytes_per_token / numbers} bytes`;
    list.set("formula", bytes, `${product} = ${count(bytes)} bytes`);
    list.set("filled", cache_bytes, `${count(cache_bytes)} bytes`);
    list.set("allocated", cache_capacity_bytes, `${count(cache_capacity_bytes)} bytes`);
  };
  return { element: list.element, draw };
}

// Milliseconds per token against the position: a dot per token. What happens to take far longer
// than the rest lies on the upper edge, and is told below.
function timeChart() {
  const dots = { on: drawn("path", { class: "ft-on" }), off: drawn("path", { class: "ft-off" }) };
  const chart = drawn("svg", { role: "img", preserveAspectRatio: "none" }, dots.off, dots.on);
  const [top, middle, end] = [make("span"), make("span"), make("span")];
  const slow = make("p", { class: "ft-note" });
  const element = make(
    "section",
    {},
    make("p", { class: "ft-heading" }, "Milliseconds per token"),
    make(
      "div",
      { class: "ft-chart" },
      make("div", { class: "ft-ticks", "aria-hidden": "true" }, top, middle, make("span", {}, "0")),
      chart,
      make("div", { class: "ft-ends", "aria-hidden": "true" }, make("span", {}, "position 1"), end),
    ),
    slow,
  );
  const draw = (runs) => {
    const shown = Object.values(runs);
    const steps = shown.flatMap((run) => run.steps).sort((a, b) => a - b);
    if (!steps.length) return;
    const height = roundUp(1.1 * steps[Math.floor(0.97 * steps.length)]);
    const n = Math.max(...shown.map((run) => run.n_columns));
    chart.setAttribute("viewBox", `0 ${-height} ${n} ${height}`);
    for (const kind in dots)
      dots[kind].setAttribute("d", runs[kind] ? path(runs[kind], height) : "");
    [top.textContent, middle.textContent] = [`${height} ms`, String(height / 2)];
    end.textContent = String(n);
    const above = steps.filter((ms) => ms > height);
    slow.textContent = above.length
      ? `On the upper edge: ${plural(above.length, "token")}, up to ${short(above.at(-1))} ms.`
      : "";
  };
  const path = ({ prompt, steps }, height) =>
    steps.map((ms, i) => `M${prompt.length + i} ${-Math.min(ms, height)}h0`).join("");
  const describe = (runs) => {
    const begun = Object.values(runs).filter(({ steps }) => steps.length);
    if (!begun.length) return; // the text was refused
    const words = begun.map(({ kind, steps }) => {
      const [early, late] = [steps.slice(0, 20), steps.slice(-20)].map((ms) => short(median(ms)));
      return `${KINDS[kind]} ${early} ms at the beginning of the text, ${late} ms at its end`;
    });
    chart.setAttribute("aria-label", `Milliseconds per token: ${words.join("; ")}.`);
  };
  return { element, draw, describe };
}

// Tokens per second of both kinds, from the reader's own runs, and why they differ.
function rateComparison() {
  const bars = rateBars(KINDS);
  const verdict = make("p", { class: "ft-verdict" });
  const work = make("p", { class: "ft-note" });
  const title = make("p", { class: "ft-heading" }, "Tokens per second");
  const element = make("section", {}, title, bars.element, verdict, work);
  const draw = (runs, current) => {
    const rates = { on: runs.on && rateOf(runs.on), off: runs.off && rateOf(runs.off) };
    bars.draw(rates);
    const both = rates.on && rates.off;
    verdict.textContent = both ? `${short(rates.on / rates.off)} times as fast with it.` : "";
    work.textContent = workWords(current);
  };
  return { element, draw };
}

// What a pass without a cache computes again.
function workWords({ kind, ids, n_computed, n_again, prompt }) {
  if (!ids.length) return "";
  const n = count(prompt.length + ids.length - 1);
  if (kind === "on") {
    return `Positions sent through the model: ${count(n_computed)}. Without a cache: ${count(n_again)}, as every step sends the whole text.`;
  }
  return `Positions sent through the model: ${count(n_computed)}. With a cache: ${n}, each once.`;
}

function summary(runs, { kind, ids }) {
  const rate = rateOf(runs[kind]);
  if (!rate) return `Stopped after ${plural(ids.length, "token")}.`;
  const words = `${plural(ids.length, "token")} ${KINDS[kind]}: ${short(rate)} per second.`;
  const other = runs[kind === "on" ? "off" : "on"];
  const otherRate = other && rateOf(other);
  if (!otherRate)
    return `${words} Now switch the cache ${kind === "on" ? "off" : "on"} and write again.`;
  const n = Math.min(ids.length, other.ids.length);
  const same = ids.slice(0, n).every((id, i) => id === other.ids[i]);
  return `${words} ${same ? "The text is the same" : "The text is another"} as ${KINDS[other.kind]}, where it was ${short(otherRate)}.`;
}

const SVG = "http://www.w3.org/2000/svg";

function drawn(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function cover(rect, from, to) {
  rect.setAttribute("x", from);
  rect.setAttribute("width", Math.max(0, to - from));
}

function repeated(n, write) {
  return Array.from({ length: n }, (_, i) => write(i)).join("");
}

function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 3, 4, 6, 8, 10].find((digit) => digit * power >= value);
}
