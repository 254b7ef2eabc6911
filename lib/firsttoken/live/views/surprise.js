// How surprised the model is by the reader's own text: the loss of each token in bits, and what
// that comes to for a byte.
import {
  button,
  code,
  latest,
  make,
  percent,
  spoken,
  status,
  textField,
  tokenSpan,
} from "./parts.js";
import { rove } from "./rove.js";

const MOST_KB = 64;
const MANY_LAYERS = 12; // a model with more reads some hundred tokens a second
const MOST_KB_MANY = 8;
const TYPING_MS = 350;
const LATE_MS = 300; // what takes longer has a bar
const CHUNK = 1500; // tokens that are laid out in one frame
const ALL_ALIKE_BITS = 8; // per byte: for a reader to whom all bytes are equally likely
const STEPS = [0.5, 1, 2, 4, 8]; // bits: where the colour changes
const MOST_SURPRISING = 10;
const CONTEXT = 3; // tokens before one that say where it stands, at least
const ALTERNATIVES = 3;
const NOTHING = { ids: [], pieces: [], bits: [], n_bytes: 0 };

export function surprise(root, engine, shared) {
  const arch = engine.arch("target");
  const mostKb = arch.n_layers > MANY_LAYERS ? MOST_KB_MANY : MOST_KB;
  let settings = shared.get();
  let read; // the last answer of the engine
  let ended = false;

  const field = textField("Your text", settings.text, (text) => take(text, TYPING_MS));
  const note = make("p", { class: "ft-note", role: "alert" });
  const file = make("input", { type: "file", hidden: true });
  const open = button("Open a file…", () => file.click());
  const progress = make("progress", { "aria-label": "Reading the text", max: 1, value: 0 });
  const stop = button("Stop", () => {
    halt();
    line.say("Stopped. The colours are those of the text before.");
  });
  const working = make("div", { class: "ft-row", hidden: true }, progress, stop);
  const line = status();
  const references = rows();
  const tokens = coloured(choose);
  const about = make("div", { class: "ft-about" });
  const list = make("ol", { class: "ft-most" });
  const result = make(
    "div",
    { class: "ft-surprise" },
    make("div", { class: "ft-whole" }, line.element, references.element),
    make("div", {}, legend(), about, tokens.element),
    make("div", { class: "ft-whole" }, make("p", { class: "ft-heading" }, "Most surprising"), list),
  );
  root.replaceChildren(
    field.element,
    make("div", { class: "ft-row" }, open, file, make("span", {}, "or drop one here")),
    note,
    working,
    result,
  );

  function take(text, ms = 0) {
    const { kept, cut } = atMost(text, mostKb);
    if (cut) field.set(kept);
    note.textContent = cut ? `The text is long: its first ${mostKb} KB are read.` : "";
    settings = { ...settings, text: kept };
    shared.set({ text: kept });
    wait(ms);
  }

  async function takeFile(given) {
    try {
      const text = await textOf(given, mostKb);
      field.set(text);
      take(text);
    } catch (error) {
      note.textContent = error.message;
    }
  }
  file.addEventListener("change", () => {
    if (file.files.length) takeFile(file.files[0]);
    file.value = "";
  });
  const over = (event) => event.preventDefault();
  const drop = (event) => {
    const [given] = event.dataTransfer.files;
    if (!given) return; // a piece of text, which the field takes by itself
    event.preventDefault();
    takeFile(given);
  };
  root.addEventListener("dragover", over);
  root.addEventListener("drop", drop);

  // A new text stops the work on the one before.
  let timer;
  let job;

  function wait(ms = 0) {
    clearTimeout(timer);
    halt();
    timer = setTimeout(ask, ms);
  }

  function halt() {
    job?.stop();
    job = undefined;
    working.hidden = true;
  }

  async function ask() {
    const { text } = settings;
    if (text === "") return show(NOTHING, text);
    const mine = engine.losses({ text }, (done, total) => {
      progress.max = total;
      progress.value = done;
    });
    job = mine;
    progress.removeAttribute("value");
    const late = setTimeout(() => {
      working.hidden = mine !== job;
    }, LATE_MS);
    try {
      const answer = await mine;
      if (mine === job && !ended) await show(answer, text);
    } catch (error) {
      if (mine === job && !ended) note.textContent = error.message;
    } finally {
      clearTimeout(late);
      if (mine === job) working.hidden = true;
    }
  }

  async function show(answer, text) {
    read = answer;
    line.say(summary(read));
    tokens.fill(read);
    list.replaceChildren(...mostSurprising(read, tokens.goTo));
    about.replaceChildren(hint(read));
    const packed = text && (await gzipBitsPerByte(text));
    if (read !== answer || ended) return;
    references.draw(compared(read, packed, settings.held_out));
  }

  // What could have come instead: one pass over what the model had read when it met the token.
  let chosen;

  function choose(index) {
    chosen = index;
    about.replaceChildren(...basics(read, index));
    explain();
  }

  const explain = latest(async () => {
    const [index, from] = [chosen, read];
    const ids = contextOf(from.ids, index, arch);
    const { top } = await engine.next({ ids, params: {}, top: arch.vocab_size });
    if (chosen !== index || read !== from || ended) return;
    about.replaceChildren(...basics(from, index), ...instead(top, from.ids[index]));
  });

  shared.onChange((given) => {
    if (given.text === settings.text) return;
    field.set(given.text);
    take(given.text);
  });
  take(settings.text);
  return () => {
    ended = true;
    clearTimeout(timer);
    halt();
    root.removeEventListener("dragover", over);
    root.removeEventListener("drop", drop);
  };
}

// The first KB of a text; a character that would be cut in two is left out.
function atMost(text, kb) {
  const bytes = new TextEncoder().encode(text);
  if (bytes.length <= 1024 * kb) return { kept: text, cut: false };
  const kept = new TextDecoder().decode(bytes.subarray(0, 1024 * kb), { stream: true });
  return { kept, cut: true };
}

async function textOf(file, kb) {
  const part = await file.slice(0, 1024 * kb + 4).arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(part, {
      stream: file.size > part.byteLength,
    });
    if (!text.includes("\0")) return text;
  } catch {
    // Not UTF-8: said below.
  }
  throw new Error(`${file.name} holds no text in UTF-8, so it cannot be read here.`);
}

async function gzipBitsPerByte(text) {
  if (!globalThis.CompressionStream) return undefined;
  const blob = new Blob([text]);
  const packed = new Response(blob.stream().pipeThrough(new CompressionStream("gzip")));
  return (8 * (await packed.arrayBuffer()).byteLength) / blob.size;
}

// The ids that the model had read when it met token `index`: the end of the text before and, in a
// text longer than the context, a window that begins later. Windows overlap by half.
function contextOf(ids, index, { eos_id, max_context }) {
  const window = Math.min(max_context, ids.length);
  const half = Math.max(1, Math.floor(window / 2));
  const n = Math.max(0, Math.ceil((index + 1 - window) / half));
  const start = Math.min(n * half, ids.length - window);
  return [eos_id, ...ids].slice(start, index + 1);
}

const bitsText = (bits) => `${bits < 10 ? bits.toFixed(2) : bits.toFixed(1)} bits`;
const levelOf = (bits) => STEPS.filter((step) => bits >= step).length;
const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function summary({ ids, bits, n_bytes, bits_per_byte }) {
  if (ids.length === 0) return "There is no text yet.";
  const total = bits.reduce((sum, each) => sum + each, 0);
  const parts = `${count(ids.length, "token")}, ${count(n_bytes, "byte")}, ${count(Math.round(total), "bit")}`;
  return `${bits_per_byte.toFixed(2)} bits per byte (${parts})`;
}

function hint({ ids }) {
  const words = ids.length
    ? "Choose a token to see what else could have come."
    : "Type or paste a text: code, prose, your name.";
  return make("p", { class: "ft-note" }, words);
}

function compared({ ids, bits_per_byte }, packed, heldOut) {
  const known = [{ name: "all bytes alike", value: ALL_ALIKE_BITS }];
  if (heldOut) known.push({ name: "the model, on Python new to it", value: heldOut });
  if (packed) known.push({ name: "gzip and its header, on your text", value: packed });
  if (ids.length) known.push({ name: "the model, on your text", value: bits_per_byte, own: true });
  return known.sort((a, b) => a.value - b.value);
}

// Named numbers as bars on one scale, whose end is the largest.
function rows() {
  const list = make("ul", { class: "ft-references", "aria-label": "Bits per byte" });
  return {
    element: list,
    draw: (given) => {
      const most = Math.max(...given.map(({ value }) => value));
      const items = given.map(({ name, value, own }) => {
        const bar = make("span", { class: "ft-bar" });
        bar.style.width = `${(100 * value) / most}%`;
        return make(
          "li",
          { class: own && "ft-own" },
          make("span", {}, name),
          make("span", { class: "ft-track" }, bar),
          make("span", { class: "ft-number-text" }, value.toFixed(2)),
        );
      });
      list.replaceChildren(...items);
    },
  };
}

function legend() {
  const names = STEPS.map((step, i) => (i ? `${STEPS[i - 1]}–${step}` : `under ${step}`));
  const marks = [...names, `${STEPS.at(-1)} and more`].map((name, level) =>
    make("li", {}, make("span", { class: "ft-token", "data-level": level }, name)),
  );
  return make("ul", { class: "ft-levels", "aria-label": "Colours: bits of a token" }, ...marks);
}

// The text, each token coloured by its bits. Long texts come chunk by chunk, a frame for each; a
// chunk ends with a line, so that it can be a block, which is laid out when it comes into view.
function coloured(onChoose) {
  const list = make("div", {
    class: "ft-tokens ft-losses",
    role: "listbox",
    "aria-label": "Tokens with their bits",
  });
  const spans = [];
  const roving = rove(list, spans);
  let filling = 0;
  const choose = (index) => {
    list.querySelector('[aria-selected="true"]')?.setAttribute("aria-selected", "false");
    spans[index].setAttribute("aria-selected", "true");
    onChoose(index);
  };
  list.addEventListener("click", (event) => {
    const index = spans.indexOf(event.target.closest(".ft-token"));
    if (index >= 0) spans[index].focus();
  });
  list.addEventListener("focusin", (event) => choose(spans.indexOf(event.target)));
  return {
    element: list,
    goTo: (index) => {
      spans[index]?.scrollIntoView({ block: "center" });
      spans[index]?.focus({ preventScroll: true });
    },
    fill: ({ pieces, bits }) => {
      cancelAnimationFrame(filling);
      spans.length = 0;
      list.replaceChildren();
      const more = () => {
        if (spans.length === pieces.length) return;
        const first = spans.length;
        let end = Math.min(first + CHUNK, pieces.length);
        while (end < pieces.length && end < first + 2 * CHUNK && !pieces[end - 1].endsWith("\n"))
          end += 1;
        for (let i = first; i < end; i += 1) spans.push(lossSpan(pieces[i], bits[i]));
        list.append(make("div", { class: "ft-chunk" }, ...spans.slice(first)));
        if (first === 0) roving.enter(spans[0]);
        filling = requestAnimationFrame(more);
      };
      more();
    },
  };
}

function lossSpan(text, bits) {
  return tokenSpan(text, {
    role: "option",
    tabindex: "-1",
    "aria-selected": "false",
    "aria-label": `${spoken(text)}, ${bitsText(bits)}`,
    "data-level": levelOf(bits),
  });
}

function mostSurprising({ pieces, bits }, goTo) {
  const order = Array.from(bits, (_, index) => index).sort((a, b) => bits[b] - bits[a]);
  return order.slice(0, MOST_SURPRISING).map((index) => {
    const context = make("span", { class: "ft-context" }, contextBefore(pieces, index));
    const go = button("", () => goTo(index));
    go.append(
      make("span", { class: "ft-place" }, context, code(pieces[index])),
      make("span", { class: "ft-number-text" }, bitsText(bits[index])),
    );
    return make("li", {}, go);
  });
}

// What stands before a token in its line: some tokens, and what belongs to the first word of them.
function contextBefore(pieces, index) {
  let first = Math.max(0, index - CONTEXT);
  const most = Math.max(0, index - 2 * CONTEXT); // not all of a word without end
  while (first > most && /^\w/.test(pieces[first]) && /\w$/.test(pieces[first - 1])) first -= 1;
  const before = pieces.slice(first, index).join("");
  return before.split("\n").at(-1).trimStart();
}

function basics({ pieces, bits }, index) {
  const p = 2 ** -bits[index];
  const exact = p < 0.001 ? `${(100 * p).toPrecision(2)} %` : percent(p);
  return [make("p", {}, code(pieces[index]), ` ${bitsText(bits[index])}: p = ${exact}.`)];
}

function instead(top, id) {
  const rank = top.findIndex((each) => each.id === id) + 1;
  const others = top.filter((each) => each.id !== id).slice(0, ALTERNATIVES);
  const place =
    rank === 1 ? "It was the likeliest token." : `It was number ${rank} of ${top.length}.`;
  const items = others.map((each) => make("li", {}, code(each.piece), ` ${percent(each.p)}`));
  return [make("p", {}, place, " Instead could have come:"), make("ul", {}, ...items)];
}
