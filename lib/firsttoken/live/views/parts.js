// Pieces that views are made of. Each function returns an element, or an object with its `element`
// and what can be done with it. None knows the engine.

export const END = "<|endoftext|>"; // the token between two texts
const ANNOUNCED_EVERY_MS = 3000; // a screen reader needs time to finish a sentence
// A notebook loads this module once per widget: each numbers its own fields.
const MODULE = Math.random().toString(36).slice(2, 8);
let n_ids = 0;

// An element with attributes and children; an attribute that is false or undefined is left out.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Return a function that has `paint` called in the next frame, once, however often it is called.
export function painter(paint) {
  let frame = 0;
  return () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      paint();
    });
  };
}

// Return a function that runs `task` again after the run it finds in progress, once.
export function latest(task) {
  let running = false;
  let again = false;
  return async function run() {
    if (running) {
      again = true;
      return;
    }
    running = true;
    try {
      do {
        again = false;
        await task();
      } while (again);
    } finally {
      running = false;
    }
  };
}

export function button(label, onPress, { primary = false } = {}) {
  const element = make("button", { type: "button", class: primary && "ft-primary" }, label);
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") onPress();
  });
  return element;
}

// Let a button act or not. It keeps the focus either way, so that no reader loses their place.
export function enable(element, on) {
  element.setAttribute("aria-disabled", String(!on));
}

// A button that is pressed or not; onChange gets the new state.
export function toggle(label, pressed, onChange) {
  const element = button(label, () => {
    set(element.getAttribute("aria-pressed") !== "true");
    onChange(element.getAttribute("aria-pressed") === "true");
  });
  const set = (on) => element.setAttribute("aria-pressed", String(on));
  set(pressed);
  return { element, set };
}

// A range with its name and a readout; `format` writes a value for eye and ear alike.
export function slider(label, { min, max, step = 1, value, format = String }, onInput) {
  const id = newId();
  const input = make("input", { type: "range", id, min, max, step });
  const readout = make("span", { class: "ft-readout", "aria-hidden": "true" });
  const show = () => {
    readout.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", readout.textContent);
    input.style.setProperty("--ft-at", `${(100 * (input.value - min)) / (max - min)}%`);
  };
  const set = (number) => {
    input.value = number;
    show();
  };
  set(value);
  input.addEventListener("input", () => {
    show();
    onInput(Number(input.value));
  });
  const name = make("label", { for: id }, label);
  return { element: make("div", { class: "ft-slider" }, name, readout, input), set };
}

// One of some entries, {key: {name, about}}; what it is stands below.
export function menu(label, entries, value, onChange) {
  const id = newId();
  const options = Object.entries(entries).map(([key, { name }]) =>
    make("option", { value: key }, name),
  );
  const select = make("select", { id, "aria-describedby": `${id}-about` }, ...options);
  const about = make("p", { class: "ft-note", id: `${id}-about` });
  const set = (key) => {
    select.value = key;
    about.textContent = entries[key].about;
  };
  set(value);
  select.addEventListener("change", () => {
    set(select.value);
    onChange(select.value);
  });
  const element = make("div", { class: "ft-menu" }, make("label", { for: id }, label), select);
  element.append(about);
  return { element, set };
}

// A whole number from min to max; what is no such number is marked and not handed on.
export function numberField(label, { min, max, value }, onInput) {
  const id = newId();
  const input = make("input", { type: "number", id, min, max, step: 1, required: true });
  input.addEventListener("input", () => {
    const wrong = !input.checkValidity();
    input.setAttribute("aria-invalid", String(wrong));
    if (!wrong) onInput(Number(input.value));
  });
  const set = (number) => {
    if (input.value !== String(number)) input.value = number;
    input.setAttribute("aria-invalid", "false");
  };
  set(value);
  return {
    element: make("div", { class: "ft-number" }, make("label", { for: id }, label), input),
    set,
  };
}

// A text to edit, as high as what stands in it. Behind it lie the same words once more, unseen,
// that can be coloured. `show` takes parts, {text, class}, which together are the text.
export function textField(label, value, onInput) {
  const id = newId();
  const input = make("textarea", { id, rows: 1, spellcheck: "false", autocapitalize: "off" });
  input.autocomplete = "off";
  const behind = make("div", { class: "ft-behind", "aria-hidden": "true" });
  const scroll = make("div", { class: "ft-text" }, make("div", {}, behind, input));
  let shown = [];
  // What stands there already stays: a long text that grows is not built anew.
  const colour = (parts) => {
    const other = shown.findIndex((part, i) => !alike(part, parts[i]));
    const first = other < 0 ? shown.length : other;
    while (behind.childNodes.length > first) behind.lastChild.remove();
    const added = parts.slice(first).map((part) => make("span", { class: part.class }, part.text));
    behind.append(...added, "\u200b"); // without it a newline at the end would take no room
    shown = parts;
  };
  const show = (parts) => {
    const selected = input.selectionStart < input.selectionEnd;
    const atEnd = scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - 40;
    replace(parts.map((part) => part.text).join(""));
    colour(parts);
    if (atEnd && !selected) scroll.scrollTop = scroll.scrollHeight;
  };
  // Only what is new is written, so that what the reader has selected stays. Who has selected all
  // still has all, and a cursor at the end stays at the end.
  const replace = (text) => {
    const { value: old, selectionStart, selectionEnd } = input;
    if (old === text) return;
    const all = selectionStart === 0 && selectionEnd === old.length;
    const from = all ? 0 : commonLength(old, text);
    const mode = selectionStart === old.length ? "end" : "preserve";
    input.setRangeText(text.slice(from), from, old.length, mode);
  };
  const set = (text) => show([{ text }]);
  set(value);
  input.addEventListener("input", () => {
    colour([{ text: input.value }]);
    onInput(input.value);
  });
  const name = make("label", { for: id }, label);
  return { element: make("div", { class: "ft-field" }, name, scroll), input, set, show };
}

// How many characters two texts begin with alike.
function commonLength(one, other) {
  let n = 0;
  while (n < one.length && one[n] === other[n]) n += 1;
  return n;
}

function alike(part, other) {
  return part.text === other?.text && part.class === other.class;
}

// A line that says how things stand. `show` may be called in every frame; what is handed to `say`
// is also spoken by a screen reader, at most every few seconds, and the last word always. `speak`
// is for what is seen elsewhere.
export function status() {
  const seen = make("p", { class: "ft-seen" });
  const spoken = make("p", { class: "ft-spoken", role: "status", "aria-live": "polite" });
  let timer = 0;
  let last = -ANNOUNCED_EVERY_MS;
  let text = "";
  const now = () => {
    timer = 0;
    last = performance.now();
    spoken.textContent = text;
  };
  const speak = (words) => {
    text = words;
    timer ||= setTimeout(now, Math.max(0, last + ANNOUNCED_EVERY_MS - performance.now()));
  };
  const show = (words) => {
    seen.textContent = words;
  };
  return {
    element: make("div", { class: "ft-status" }, seen, spoken),
    show,
    speak,
    say: (words) => {
      show(words);
      speak(words);
    },
  };
}

const INVISIBLE = {
  " ": ["·", "space"],
  "\n": ["↵", "newline"],
  "\t": ["→", "tab"],
  "\r": ["␍", "return"],
};

// The text of a token with marks for what cannot be seen. In a flowing text a newline also breaks
// the line, and a space may.
export function pieceNodes(piece, { flowing = false } = {}) {
  if (piece === END) return [make("span", { class: "ft-special" }, "end of text")];
  return piece.split(/([ \n\t\r])/).flatMap((part) => {
    if (!INVISIBLE[part]) return part ? [part] : [];
    const mark = make("span", { class: "ft-invisible" }, INVISIBLE[part][0]);
    if (flowing && part === "\n") return [mark, "\n"];
    return flowing && part === " " ? [make("wbr"), mark] : [mark];
  });
}

// The same for the ear: "space def".
export function spoken(piece) {
  if (piece === END) return "end of text";
  return piece.replace(/[ \n\t\r]/g, (char) => ` ${INVISIBLE[char][1]} `).trim();
}

// The same within a sentence, framed.
export const code = (piece) => make("code", {}, ...pieceNodes(piece));

// One token in a text; a list of them goes into an element of class ft-tokens.
export function tokenSpan(piece, attributes = {}) {
  const names = `ft-token ${attributes.class ?? ""}`.trim();
  return make("span", { ...attributes, class: names }, ...pieceNodes(piece, { flowing: true }));
}

export function percent(p) {
  if (p === 0) return "0 %";
  if (p < 0.001) return "<0.1 %";
  return `${(100 * p).toFixed(1)} %`;
}

// The same in a flowing text: a number and its sign stay on one line.
export const share = (p) => percent(p).replace(" ", "\u00a0");

// Tokens with two probabilities each: a pale bar for the one before, a strong one for the one
// after, both on one scale. `draw` takes rows of {piece, before, after, note, picked}: a `note`
// stands in the place of the second number, and the bar is dashed. Rows can be pressed if there is
// an onPick, and one may be `picked`; `heads` name the two columns of numbers.
export function bars(label, { heads = [], onPick, pickWord = "" } = {}) {
  const columns = ["", ...heads].map((head) => make("span", {}, head));
  const header = make("p", { class: "ft-heads", "aria-hidden": "true" }, ...columns);
  header.hidden = heads.length === 0;
  const list = make("ol", { class: "ft-bars", "aria-label": label });
  const scale = make("p", { class: "ft-scale", "aria-hidden": "true" });
  let rows = [];
  const newRow = (index) => {
    const row = {
      piece: make("span", { class: "ft-piece" }),
      pale: make("span", { class: "ft-pale" }),
      strong: make("span", { class: "ft-strong" }),
      before: make("span", { class: "ft-before" }),
      after: make("span", { class: "ft-after" }),
    };
    const track = make("span", { class: "ft-track" }, row.pale, row.strong);
    const parts = [row.piece, track, row.before, row.after];
    row.box = onPick ? button("", () => onPick(rows[index])) : make("span");
    row.box.append(...parts);
    row.item = make("li", {}, row.box);
    return row;
  };
  const nodes = [];
  const draw = (given) => {
    rows = given;
    const largest = Math.max(...rows.map((row) => Math.max(row.before, row.after)));
    const full = [0.1, 0.25, 0.5].find((end) => largest <= end) ?? 1;
    while (nodes.length < rows.length) {
      nodes.push(newRow(nodes.length));
      list.append(nodes.at(-1).item);
    }
    nodes.forEach((node, index) => {
      node.item.hidden = index >= rows.length;
      if (!node.item.hidden) drawRow(node, rows[index], full, onPick && pickWord);
    });
    scale.textContent = rows.length ? `A full bar is ${100 * full} %.` : "";
  };
  return { element: make("div", {}, header, list, scale), draw };
}

function drawRow(node, { piece, before, after, note, picked }, full, word) {
  if (node.shown !== piece) node.piece.replaceChildren(...pieceNodes(piece));
  node.shown = piece;
  node.item.classList.toggle("ft-dropped", Boolean(note));
  node.pale.style.width = `${(100 * before) / full}%`;
  node.strong.style.width = `${(100 * after) / full}%`;
  node.before.textContent = percent(before);
  node.after.textContent = note ?? percent(after);
  if (word) {
    const then = node.after.textContent && `, then ${node.after.textContent}`;
    node.box.setAttribute("aria-label", `${word} ${spoken(piece)}: ${percent(before)}${then}`);
    if (picked !== undefined) node.box.setAttribute("aria-pressed", String(picked));
  }
}

// What stands below the still figure while the model is on its way, or when it did not come.
export function waiting(root) {
  const place = root.querySelector(".ft-live-try") ?? root.appendChild(make("p"));
  const bar = make("progress", { "aria-label": "Loading the model", max: 1, value: 0 });
  const amount = make("span", { class: "ft-readout" });
  const loading = make("span", { class: "ft-loading" }, bar, amount);
  place.replaceChildren(loading);
  return {
    progress: (loaded, total) => {
      bar.max = total;
      bar.value = loaded;
      amount.textContent = `${(loaded / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
    },
    failed: (error, again) => {
      const words = make("span", { role: "alert" }, error.message);
      const tryAgain = () => {
        place.replaceChildren(loading);
        again();
      };
      const retry = button("Try again", tryAgain, { primary: true });
      place.replaceChildren(make("span", { class: "ft-failed" }, words, retry));
      if (isFocusFree(root)) retry.focus({ preventScroll: true });
    },
  };
}

// Whether nobody would miss the focus: it is in the view, or was on what is gone by now.
export function isFocusFree(root) {
  const { activeElement, body } = document;
  return activeElement === body || root.contains(activeElement);
}

// The button that had the focus is gone: typing goes on in the view. Where a finger points, a
// keyboard on the screen would hide half of it, so there only the view itself is focused.
export function focusInside(root) {
  if (!isFocusFree(root)) return; // the reader is elsewhere by now
  const finger = matchMedia("(pointer: coarse)").matches;
  root.tabIndex = -1;
  (finger ? root : root.querySelector("textarea")).focus({ preventScroll: true });
}

function newId() {
  n_ids += 1;
  return `ft-live-${MODULE}-${n_ids}`;
}
