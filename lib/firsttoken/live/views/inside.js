// What happens inside a pass over the reader's text: what a head reads, what each layer would say,
// and what the model expects when some heads are silent.
import { headTable, inLine, isSilent, pathOf } from "./heads.js";
import {
  bars,
  button,
  code,
  latest,
  make,
  painter,
  share,
  slider,
  spoken,
  status,
  textField,
  toggle,
  tokenSpan,
} from "./parts.js";
import { rove } from "./rove.js";

const MOST_TOKENS = 96;
const TYPING_MS = 120; // between two keys of a fast writer
const NAMED = 3; // tokens, or heads, that a sentence names
const TRY_ALL = "Try every head";
const MANY_LAYERS = 12; // in a model with more, whose heads are many, the sinks are seen first

export function inside(root, engine, shared) {
  const arch = engine.arch("target");
  let settings = shared.get();
  let seen; // the last answer: pieces, attention, layers, next, and what was silent in it
  let reader; // the token that reads; undefined: the last one
  let pointed; // the token under the pointer or with the focus
  let watched; // the id of the next token whose probability is told; undefined: the likeliest
  let tried = new Map(); // a head's number, to the probabilities [V] with that head alone silent
  let trial; // the engine's job while every head is tried
  let showsSinks = arch.n_layers > MANY_LAYERS; // in the table, if all heads are known
  let ended = false;

  const field = textField("Your text", settings.text, (text) => {
    reader = undefined;
    change({ text });
    wait(TYPING_MS);
  });
  const cut = make("p", { class: "ft-note", hidden: true });
  const tokens = tokenList({
    onPoint: (index) => {
      pointed = index;
      paint();
    },
    onChoose: choose,
  });
  const map = attentionMap(choose);
  const layer = slider(
    "Layer",
    { min: 1, max: arch.n_layers, value: settings.layer + 1, format: (n) => String(n) },
    (n) => look({ layer: n - 1 }),
  );
  const head = slider(
    "Head",
    { min: 1, max: arch.n_heads, value: settings.head + 1, format: (n) => String(n) },
    (n) => look({ head: n - 1 }),
  );
  const silence = button("Silence", () => flip(settings.layer, settings.head), { primary: true });
  const restore = button("Restore all", () => {
    change({ silenced: [] });
    wait();
  });
  const every = button(TRY_ALL, () => (trial ? trial.stop() : tryAll()));
  const sinkSwitch = toggle("Sinks", showsSinks, (on) => {
    showsSinks = on;
    paint();
  });
  const heads = headTable(arch, flip);
  const found = make("p", { class: "ft-found" });
  const effect = make("p", { class: "ft-effect" });
  const next = bars("What the model expects next", {
    heads: ["all heads", "silent"],
    onPick: watch,
    pickWord: "Watch",
  });
  const help = make("p", { class: "ft-note" }, "Press a token to follow that one.");
  const line = status();
  line.element.classList.add("ft-spoken"); // what it says stands on the page in two places

  root.replaceChildren(
    field.element,
    cut,
    make(
      "div",
      { class: arch.n_layers > MANY_LAYERS ? "ft-inside ft-many" : "ft-inside" },
      make(
        "div",
        { class: "ft-reads" },
        tokens.element,
        make("div", { class: "ft-sliders" }, layer.element, head.element),
      ),
      map.element,
      make(
        "div",
        { class: "ft-silence" },
        make("div", { class: "ft-row" }, silence, restore, every, sinkSwitch.element),
        effect,
        heads.element,
        found,
      ),
      make("div", { class: "ft-next" }, next.element, help),
    ),
    line.element,
  );

  // The head that is looked at: of an answer that brought one head only, that one.
  const looked = () => seen.only || settings;

  const draw = () => {
    if (!seen || ended) return;
    const n = seen.pieces.length;
    const from = Math.min(reader ?? n - 1, n - 1);
    const shares = rowsOf(seen, looked());
    tokens.draw({ shares: shares[from], reader: from, pointed, name: headName(looked()) });
    map.draw({ rows: shares, reader: from, name: headName(looked()) });
    heads.draw({
      ...settings,
      layers: seen.layers,
      changes: changes(),
      piece: followed().piece,
      sinks: showsSinks && seen.sinks,
    });
    sinkSwitch.element.hidden = !seen.sinks;
    const silent = isSilent(settings, settings.layer, settings.head);
    silence.textContent = `${silent ? "Restore" : "Silence"} ${inLine(settings)}`;
    restore.disabled = settings.silenced.length === 0;
    drawNext();
    drawFound();
  };
  const paint = painter(draw);

  function drawNext() {
    // Without silent heads there is one probability, not two that are equal.
    const note = seen.silenced.length > 0 ? undefined : "";
    next.draw(seen.next.map((row) => ({ ...row, note, picked: row === followed() })));
    effect.replaceChildren(...effectOf(followed(), seen.silenced));
  }

  function drawFound() {
    const known = changes();
    const [n, all] = [known.size, arch.n_layers * arch.n_heads];
    if (showsSinks && seen.sinks) found.replaceChildren(sinksOf(seen.sinks));
    else if (trial) found.replaceChildren(`Trying: ${n} of ${all} heads so far.`);
    else if (n === all) found.replaceChildren(...largestOf(known, followed(), arch));
    else found.replaceChildren(n ? `${n} of ${all} heads tried.` : "");
  }

  function say() {
    const n = seen.pieces.length;
    const from = Math.min(reader ?? n - 1, n - 1);
    const shares = rowsOf(seen, looked())[from];
    const reads = `${headName(looked())}: ${readingOf(seen.pieces, shares, from)}`;
    line.say(`${reads} ${effect.textContent}`);
  }

  function change(made) {
    settings = { ...settings, ...made };
    shared.set(made);
  }

  function look(made) {
    change(made);
    paint();
    if (seen?.only) wait();
    else if (seen) say();
  }

  const followed = () => seen.next.find(({ id }) => id === watched) ?? seen.next[0];

  // What each head that was tried does to the token that is followed: {before, after} by its number.
  function changes() {
    const { id, before } = followed();
    const told = [...tried].filter(([, p]) => id in p);
    return new Map(told.map(([number, p]) => [number, { before, after: p[id] }]));
  }

  function watch({ id }) {
    watched = id;
    draw();
    say();
  }

  function choose(index) {
    reader = index;
    paint();
    say();
  }

  function flip(at, number) {
    const others = settings.silenced.filter(([l, h]) => l !== at || h !== number);
    const silenced = isSilent(settings, at, number) ? others : [...others, [at, number]];
    change({ layer: at, head: number, silenced });
    layer.set(at + 1);
    head.set(number + 1);
    paint();
    wait();
  }

  let timer;

  function wait(ms = 0) {
    clearTimeout(timer);
    timer = setTimeout(ask, ms);
  }

  const ask = latest(async () => {
    try {
      const { text, silenced, layer: at, head: number } = settings;
      const { ids, pieces } = await engine.tokenize(text);
      const kept = ids.slice(-MOST_TOKENS);
      const asked = { ids: [arch.eos_id, ...kept], silenced };
      const answer = await engine.inside({ ...asked, layer: at, head: number, watched });
      if (ended) return;
      cut.hidden = kept.length === ids.length;
      cut.textContent = `${ids.length} tokens; the model is shown the last ${MOST_TOKENS}.`;
      const only = answer.attention.length === asked.ids.length ** 2 && { layer: at, head: number };
      show({ ...answer, ...asked, only, pieces: [START, ...pieces.slice(-MOST_TOKENS)] });
    } catch (error) {
      fail(error);
    }
  });

  function fail({ message }) {
    if (!ended) effect.replaceChildren(make("span", { role: "alert" }, message));
  }

  function show(answer) {
    const same = seen?.ids.join() === answer.ids.join();
    seen = { ...answer, arch };
    seen.sinks = !seen.only && seen.pieces.length > 1 && sharesOfStart(seen);
    if (!same) {
      pointed = undefined;
      watched = undefined;
      tokens.fill(seen.pieces);
      endTrial();
      tried = new Map();
    }
    drawNext();
    paint();
    say();
    trySilenced();
  }

  const isNew = ([at, number]) => !(followed().id in (tried.get(at * arch.n_heads + number) ?? {}));

  // Silence heads, each by itself; what comes of it is kept as long as the text stays.
  function tryHeads(some) {
    const kept = tried;
    const { done, stop } = engine.withoutEach(
      { ids: seen.ids, heads: some.filter(isNew), watch: seen.next.map(({ id }) => id) },
      ({ layer: at, head: number, p }) => {
        kept.set(at * arch.n_heads + number, p);
        if (kept !== tried) return; // those of a text before
        paint();
        if (trial) sayFound();
      },
    );
    return { done: done.catch(fail), stop };
  }

  // What the reader silences is tried by itself, too: it may be one of several.
  function trySilenced() {
    if (!trial && settings.silenced.some(isNew)) tryHeads(settings.silenced);
  }

  async function tryAll() {
    if (!seen) return;
    const all = Array.from({ length: arch.n_layers * arch.n_heads }, (_, number) => [
      Math.floor(number / arch.n_heads),
      number % arch.n_heads,
    ]);
    const mine = tryHeads(all);
    trial = mine;
    showsSinks = false;
    sinkSwitch.set(false);
    every.textContent = "Stop";
    await mine.done;
    if (trial !== mine) return; // the text is another by now
    endTrial();
    sayFound();
    trySilenced();
  }

  function endTrial() {
    trial?.stop();
    trial = undefined;
    every.textContent = TRY_ALL;
  }

  function sayFound() {
    drawFound();
    line.say(found.textContent);
  }

  shared.onChange((given) => {
    if (JSON.stringify(given) === JSON.stringify(settings)) return;
    settings = given;
    field.set(settings.text);
    layer.set(settings.layer + 1);
    head.set(settings.head + 1);
    wait();
  });
  wait();
  return () => {
    ended = true;
    clearTimeout(timer);
    endTrial();
  };
}

const START = ""; // the end of the text before: every text starts after it

const headName = ({ layer, head }) => `Layer ${layer + 1}, head ${head + 1}`;
const shownPiece = (piece) => (piece === START ? make("code", {}, "start") : code(piece));
const spokenPiece = (piece) => (piece === START ? "start" : spoken(piece));

// The T×T weights of one head, row by row.
function rowsOf({ attention, pieces, arch, only }, { layer, head }) {
  const n = pieces.length;
  const first = only ? 0 : (layer * arch.n_heads + head) * n * n;
  return pieces.map((_, row) => attention.subarray(first + row * n, first + (row + 1) * n));
}

// By a head's number, the share that its queries take from the start, on average; the start itself
// can read nothing else.
function sharesOfStart({ attention, pieces, arch }) {
  const n = pieces.length;
  return Float32Array.from({ length: arch.n_layers * arch.n_heads }, (_, number) => {
    let sum = 0;
    for (let row = 1; row < n; row += 1) sum += attention[(number * n + row) * n];
    return sum / (n - 1);
  });
}

function sinksOf(sinks) {
  const mean = sinks.reduce((sum, p) => sum + p, 0) / sinks.length;
  const n = sinks.filter((p) => p > 0.5).length;
  return `${n} of ${sinks.length} heads take more than half from the start; on average it is ${share(mean)}.`;
}

function largest(shares, count) {
  const order = Array.from(shares, (p, index) => ({ p, index }));
  return order.sort((a, b) => b.p - a.p).slice(0, count);
}

// "reads 77.0 % from fo, 6.9 % from newline"
function readingOf(pieces, shares, from) {
  const parts = largest(shares.subarray(0, from + 1), NAMED).map(
    ({ p, index }) => `${share(p)} from ${spokenPiece(pieces[index])}`,
  );
  return `${spokenPiece(pieces[from])} reads ${parts.join(", ")}.`;
}

// What became of a token.
function effectOf(row, silenced) {
  const token = code(row.piece);
  if (silenced.length === 0) return ["The model expects ", token, ` with ${share(row.before)}.`];
  const who =
    silenced.length === 1
      ? inLine({ layer: silenced[0][0], head: silenced[0][1] })
      : `${silenced.length} heads`;
  return [`Without ${who}, `, token, ` ${pathOf(row)}.`];
}

// "Without layer 6, head 4 alone, fo falls from 86.3 % to 33.4 %. Then count …"
function largestOf(changes, { piece }, { n_heads }) {
  const size = ([, { before, after }]) => Math.abs(after - before);
  const [[number, path], ...others] = [...changes].sort((a, b) => size(b) - size(a));
  const name = (n) => inLine({ layer: Math.floor(n / n_heads), head: n % n_heads });
  const then = others.slice(0, NAMED - 1).map(([n, { after }]) => `${name(n)}: to ${share(after)}`);
  const first = `The largest change: without ${name(number)}, `;
  return [first, code(piece), ` ${pathOf(path)}. The next: ${then.join("; ")}.`];
}

// The text as tokens, coloured by how much the reading token takes from each. Tab enters the list
// once; arrow keys go from token to token; Enter or a click makes one the reader.
function tokenList({ onPoint, onChoose }) {
  const sentence = make("p", { class: "ft-sentence" });
  const list = make("div", { class: "ft-tokens", role: "listbox", "aria-label": "Tokens" });
  const readout = make("p", { class: "ft-readout", "aria-hidden": "true" });
  const spans = [];
  let pieces = [];
  const roving = rove(list, spans);
  const indexOf = (event) => spans.indexOf(event.target.closest(".ft-token"));
  const point = (event) => {
    const index = indexOf(event);
    onPoint(index < 0 ? undefined : index);
  };
  list.addEventListener("pointerover", point);
  list.addEventListener("focusin", point);
  list.addEventListener("pointerleave", () => onPoint(undefined));
  list.addEventListener("focusout", () => onPoint(undefined));
  list.addEventListener("click", (event) => {
    if (indexOf(event) >= 0) onChoose(indexOf(event));
  });
  list.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    onChoose(indexOf(event));
  });
  return {
    element: make("div", {}, sentence, list, readout),
    fill: (given) => {
      pieces = given;
      const option = { role: "option", tabindex: "-1" };
      spans.length = 0;
      for (const piece of pieces) spans.push(tokenSpan(piece, option));
      spans[0].replaceChildren(make("span", { class: "ft-special" }, "start"));
      list.replaceChildren(...spans);
      roving.enter(spans.at(-1));
      list.scrollTop = list.scrollHeight; // the last token is the one that reads
    },
    draw: ({ shares, reader, pointed, name }) => {
      spans.forEach((span, index) => {
        const p = index <= reader ? shares[index] : 0;
        span.style.setProperty("--share", p.toFixed(3));
        span.classList.toggle("ft-later", index > reader);
        span.setAttribute("aria-selected", String(index === reader));
        span.setAttribute("aria-label", `${spokenPiece(pieces[index])}, ${share(p)}`);
      });
      list.setAttribute("aria-label", `Tokens, and what ${name} reads from each`);
      sentence.replaceChildren(`${name}: `, ...sentenceOf(pieces, shares, reader));
      readout.replaceChildren(...readoutOf(pieces, shares, reader, pointed));
    },
  };
}

function sentenceOf(pieces, shares, reader) {
  const parts = largest(shares.subarray(0, reader + 1), NAMED).flatMap(({ p, index }, i) => [
    i ? ", " : "",
    `${share(p)} from `,
    shownPiece(pieces[index]),
  ]);
  return [shownPiece(pieces[reader]), " reads ", ...parts, "."];
}

function readoutOf(pieces, shares, reader, pointed) {
  if (pointed === undefined) return ["Point at a token for its share; click it to let it read."];
  const token = shownPiece(pieces[pointed]);
  if (pointed > reader) return [token, " comes later: it cannot be read."];
  return [token, ` gets ${share(shares[pointed])}.`];
}

// All of a head at once: a row for each token that reads, a column for each that is read.
function attentionMap(onChoose) {
  const canvas = make("canvas", { role: "img", "aria-label": "What the head reads" });
  const row = make("span", { class: "ft-map-row" });
  const caption = make("figcaption");
  const box = make("div", { class: "ft-map-box" }, canvas, row);
  let n = 1;
  canvas.addEventListener("click", (event) => {
    const { top, height } = canvas.getBoundingClientRect();
    onChoose(Math.min(n - 1, Math.max(0, Math.floor(((event.clientY - top) / height) * n))));
  });
  let drawn;
  return {
    element: make("figure", { class: "ft-map" }, box, caption),
    draw: ({ rows, reader, name }) => {
      n = rows.length;
      row.style.top = `${(100 * reader) / n}%`;
      row.style.height = `${100 / n}%`;
      // The subarray's place tells heads apart, its buffer the passes.
      if (drawn?.buffer === rows[0].buffer && drawn.byteOffset === rows[0].byteOffset) return;
      drawn = rows[0];
      drawMap(canvas, rows);
      const words = habits(rows);
      caption.textContent = `Each row is a token that reads, each column one that is read. ${words}`;
      canvas.setAttribute("aria-label", `${name}, ${n} tokens by ${n}. ${words}`);
    },
  };
}

function drawMap(canvas, rows) {
  const n = rows.length;
  canvas.width = n;
  canvas.height = n;
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, n);
  rows.forEach((shares, row) => {
    for (let column = 0; column <= row; column += 1) {
      // The green of the cache: keys and values are what is read. The root lets small shares show.
      const alpha = Math.round(255 * Math.sqrt(shares[column]));
      image.data.set([15, 120, 90, alpha], 4 * (row * n + column));
    }
  });
  context.putImageData(image, 0, 0);
}

// Where a head looks on average, in words.
function habits(rows) {
  const later = rows.slice(1);
  if (later.length === 0) return "There is one token, which can only read itself.";
  const mean = (of) => share(later.reduce((sum, row, i) => sum + of(row, i + 1), 0) / later.length);
  const before = mean((row, i) => row[i - 1]);
  const own = mean((row, i) => row[i]);
  const start = mean((row) => row[0]);
  return `On average ${before} go to the token before, ${own} to the token itself, ${start} to the start.`;
}
