// The likeliest next tokens after the reader's text, with all that chooses among them, and the
// text going on: by a press on a token, or by the model's own draws.
import {
  bars,
  button,
  enable,
  latest,
  make,
  numberField,
  painter,
  slider,
  status,
  textField,
} from "./parts.js";

const N_BARS = 10;
const BARS_EVERY_MS = 150; // while the model writes: faster, nobody could read them
const CATCH_UP_FRAMES = 24;
const MOST_TOKENS = 500;
const NEUTRAL = { temperature: 1, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1 };
const ENDINGS = {
  eos: "The model ended the text here.",
  context: "The model's context is full.",
  stopped: "You stopped it.",
};

const number = (n) => n.toLocaleString("en");

export function nextToken(root, engine, shared) {
  const { max_context: context, vocab_size: n_vocab, eos_id } = engine.arch("target");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let settings = shared.get();
  // The mark that every text begins after, the reader's tokens, and behind them the model's.
  let ids = [eos_id];
  let n_typed = 1; // how many are the reader's own, the mark among them
  let past = []; // how many there were before each step that can be taken back
  let reading; // a text whose tokens are not yet known
  let n_edits = 0; // how often a text was put in the place of all that stood here
  let known; // a promise: they are
  let writing; // the handle of the engine's job
  let awaited = false; // whether the next answer is to be spoken
  let ended = false;

  const params = () =>
    Object.fromEntries([...Object.keys(NEUTRAL), "seed"].map((name) => [name, settings[name]]));
  const change = (changes) => {
    settings = { ...settings, ...changes };
    shared.set(changes);
  };

  const field = textField("Your text", settings.text, (text) => {
    change({ text });
    known = read(text);
  });
  const size = make("span", { class: "ft-readout" });
  const legend = make(
    "p",
    { class: "ft-legend" },
    make("span", { class: "ft-typed" }, "yours"),
    make("span", { class: "ft-written" }, "the model's"),
    size,
  );
  const go = button("Generate", () => (writing ? writing.stop() : write()), { primary: true });
  const undo = button("Undo", takeBack);
  const line = status();
  const chart = bars("Likeliest next tokens", {
    heads: ["model", "settings"],
    onPick: append,
    pickWord: "Append",
  });
  const help = make(
    "p",
    { class: "ft-note" },
    "Pale bar: the model's probability. Strong bar: with your settings. " +
      "Dashed, crossed out: dropped by them. A click appends the token.",
  );
  const counts = make("p", { class: "ft-counts" });
  const knobs = sliders(settings, (changes) => {
    change(changes);
    tried();
  });
  const seed = numberField("Seed", { min: 0, max: 2 ** 32 - 1, value: settings.seed }, (n) =>
    change({ seed: n }),
  );
  const another = button("New seed", () => {
    change({ seed: Math.floor(Math.random() * 10_000) });
    seed.set(settings.seed);
    line.say(`Seed ${settings.seed}.`);
  });
  const most = numberField(
    "Tokens to write",
    { min: 1, max: MOST_TOKENS, value: settings.max_tokens },
    (n) => change({ max_tokens: n }),
  );
  const reset = button("Reset settings", () => {
    change(NEUTRAL);
    knobs.set(settings);
    tried();
  });
  root.append(
    make("div", { class: "ft-growing" }, field.element, legend),
    make("div", {}, make("div", { class: "ft-row" }, go, undo), line.element),
    make("div", { class: "ft-choice" }, help, chart.element, counts),
    knobs.element,
    make("div", { class: "ft-row" }, reset, most.element, seed.element, another),
  );

  // The text was edited: what the model wrote is the reader's now.
  async function read(text) {
    writing?.stop();
    writing = undefined;
    reading = text;
    n_edits += 1;
    const found = await engine.tokenize(text);
    if (ended || text !== reading) return; // another edit came in between
    reading = undefined;
    ids = [eos_id, ...found.ids];
    n_typed = ids.length;
    past = [];
    count(); // at once: a long text takes long to paint
    line.show("");
    paint();
    predict();
  }

  function append({ id }) {
    if (writing || reading !== undefined) return;
    if (isFull()) return sayFull();
    past.push(ids.length);
    ids = [...ids, id];
    grown();
  }

  function takeBack() {
    if (writing || past.length === 0) return;
    ids = ids.slice(0, past.pop());
    line.say("");
    grown();
  }

  async function grown() {
    const now = ids;
    const text = (await engine.decode(ids.slice(1))).join("");
    if (ids !== now || reading !== undefined) return;
    change({ text });
    paint();
    predict();
  }

  async function write() {
    await known; // a last letter may have been typed just now
    if (writing) return;
    if (isFull()) return sayFull();
    const start = ids.length;
    let drawn = 0;
    let finished = false;
    let stopped = false;
    const shown = trickle(({ id, top, at_ms }) => {
      if (writing !== handle) return;
      ids = [...ids, id];
      line.show(rate(ids.length - start, at_ms));
      paint();
      const now = performance.now();
      if (calm.matches || now - drawn < BARS_EVERY_MS) return;
      drawn = now;
      chart.draw(rows(top));
    });
    const job = engine.write(
      {
        ids,
        params: params(),
        max_tokens: settings.max_tokens,
        top: N_BARS,
      },
      (token) => {
        shown.add(token);
        if (calm.matches) shown.rest();
      },
    );
    const handle = {
      stop: () => {
        stopped = !finished;
        job.stop();
        shown.rest();
      },
    };
    writing = handle;
    past.push(start);
    go.textContent = "Stop";
    paint();
    let words;
    try {
      const { finish_reason, seconds } = await job.done;
      finished = true;
      await shown.end();
      const ending = stopped ? ENDINGS.stopped : (ENDINGS[finish_reason] ?? "");
      words = `${rate(ids.length - start, 1000 * seconds)} ${ending}`;
    } catch (error) {
      shown.rest();
      words = error.message;
    } finally {
      shown.close();
    }
    if (!writing || writing === handle) go.textContent = "Generate"; // not if another one began
    if (writing !== handle) return; // the text was edited meanwhile
    writing = undefined;
    line.say(words);
    grown();
  }

  // A setting was changed: what comes of it is spoken, too.
  function tried() {
    awaited = true;
    predict();
  }

  const isFull = () => ids.length >= context;
  const sayFull = () =>
    line.say(
      `The model reads ${context} tokens at most, and your text has ${number(ids.length)}. ` +
        (past.length ? "Take something back, or shorten it." : "Shorten it."),
    );

  // Ask for the next token's distribution; of several questions only the last one matters.
  const predict = latest(
    told(async () => {
      if (ids.length > context) {
        chart.draw([]);
        counts.textContent = "";
        return sayFull();
      }
      const asked = ids;
      const found = await engine.next({ ids, params: params(), top: N_BARS });
      if (ended || writing || ids !== asked) return;
      chart.draw(rows(found.top));
      counts.textContent =
        `${number(found.n_kept)} of ${number(n_vocab)} tokens kept. ` +
        `Entropy: ${found.entropy_bits.toFixed(2)} bits, ` +
        `with your settings ${found.kept_entropy_bits.toFixed(2)}.`;
      if (awaited) line.speak(counts.textContent);
      awaited = false;
    }),
  );

  // What the engine refuses is said; the bars of another text or setting would say something wrong.
  function told(task) {
    return async () => {
      try {
        await task();
      } catch (error) {
        chart.draw([]);
        counts.textContent = "";
        line.say(error.message);
      }
    };
  }

  // Paint the text as it is by now: one request at a time, and at most one in a frame.
  const paint = painter(
    latest(async () => {
      if (reading !== undefined) return;
      const edit = n_edits;
      const parts = await engine.decode(ids.slice(1));
      if (ended || edit !== n_edits) return; // or letters typed meanwhile would be lost
      field.show(parts.map(coloured));
      count();
      enable(undo, past.length > 0 && !writing);
    }),
  );
  const count = () => {
    size.textContent = `${number(ids.length)} of ${context} tokens`;
  };
  const coloured = (text, index) => {
    const whose = index + 1 < n_typed ? "ft-typed" : "ft-written";
    return { text, class: ids[index + 1] === eos_id ? `${whose} ft-end` : whose };
  };

  shared.onChange((given) => {
    const before = settings;
    settings = given;
    knobs.set(settings);
    seed.set(settings.seed);
    most.set(settings.max_tokens);
    if (given.text !== before.text) {
      field.set(given.text);
      known = read(given.text);
    } else if (Object.keys(NEUTRAL).some((name) => given[name] !== before[name])) predict();
  });
  known = read(settings.text);
  return () => {
    ended = true;
    writing?.stop();
  };
}

// Hand on what comes a few at a time, frame by frame: a short text is made faster than anybody could
// see it being written, and a long one is caught up with. A page that nobody sees has no frames:
// there, all is handed on at once. `rest` hands on at once all that wait, `end` resolves when none
// waits, and `close` comes last.
function trickle(take) {
  let waiting = [];
  let frame = 0;
  let empty = () => {};
  const some = (n) => {
    const now = waiting.slice(0, n);
    waiting = waiting.slice(n);
    now.forEach(take);
    if (waiting.length === 0) empty();
  };
  const step = () => {
    some(Math.max(1, Math.ceil(waiting.length / CATCH_UP_FRAMES)));
    frame = waiting.length && requestAnimationFrame(step);
  };
  const rest = () => some(waiting.length);
  const unseen = () => document.hidden && rest();
  document.addEventListener("visibilitychange", unseen);
  return {
    add: (item) => {
      waiting.push(item);
      frame ||= requestAnimationFrame(step);
      unseen();
    },
    rest,
    close: () => document.removeEventListener("visibilitychange", unseen),
    end: () =>
      new Promise((resolve) => {
        empty = resolve;
        if (waiting.length === 0) resolve();
      }),
  };
}

function sliders(settings, onChange) {
  const two = (value) => value.toFixed(2);
  const made = {
    temperature: ["Temperature", { max: 2, step: 0.05, format: (t) => (t ? two(t) : "0, greedy") }],
    top_k: ["Top-k", { max: 100, format: (k) => (k ? String(k) : "off") }],
    top_p: ["Top-p", { max: 1, step: 0.01, format: (p) => (p < 1 ? two(p) : "1, off") }],
    min_p: ["Min-p", { max: 1, step: 0.01, format: (p) => (p ? two(p) : "0, off") }],
    repetition_penalty: [
      "Repetition penalty",
      { min: 1, max: 2, step: 0.05, format: (r) => (r > 1 ? two(r) : "1, off") },
    ],
  };
  const all = Object.entries(made).map(([name, [label, range]]) => {
    const given = { min: 0, value: settings[name], ...range };
    return [name, slider(label, given, (value) => onChange({ [name]: value }))];
  });
  return {
    element: make("div", { class: "ft-sliders" }, ...all.map(([, knob]) => knob.element)),
    set: (values) => all.forEach(([name, knob]) => knob.set(values[name])),
  };
}

function rows(top) {
  return top.map(({ id, piece, p, kept }) => ({
    id,
    piece,
    before: p,
    after: kept,
    note: kept > 0 ? undefined : "dropped",
  }));
}

function rate(n, ms) {
  const tokens = n === 1 ? "1 token" : `${n} tokens`;
  return `${tokens} in ${(ms / 1000).toFixed(2)} s, ${Math.round((1000 * n) / ms)} per second.`;
}
