// What the two views share in which the model writes against the clock: cache and speculation.
import { make } from "./parts.js";

export const count = (n) => n.toLocaleString("en");
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
export const short = (x) => (x >= 100 ? count(Math.round(x)) : x.toPrecision(2));
export const median = (list) => list.toSorted((a, b) => a - b)[Math.floor(list.length / 2)];

// A text that grows at its end, once a frame: `nodes` makes of an item what is appended.
export function writtenText(nodes) {
  const prompt = make("span", { class: "ft-given" });
  const words = make("span");
  const box = { class: "ft-output", tabindex: "0", role: "region", "aria-label": "The text" };
  const element = make("div", box, make("div", {}, prompt, words));
  let unseen = [];
  return {
    element,
    begin: (text) => {
      prompt.textContent = text;
      words.replaceChildren();
      unseen = [];
    },
    add: (item) => unseen.push(item),
    flush: () => {
      if (!unseen.length) return;
      words.append(...unseen.flatMap(nodes));
      unseen = [];
    },
  };
}

// What the colours mean: names by class, each with a figure behind it if there is one.
export function legend(names, figures = {}) {
  const items = Object.entries(names).map(([key, name]) => {
    const swatch = make("span", { class: `ft-swatch ft-${key}` });
    return make("li", {}, swatch, `${name} `, figures[key] ?? "");
  });
  return make("ul", { class: "ft-key" }, ...items);
}

// A figure whose full number stands behind the words that are shown.
export function figure(name) {
  const element = make("data", { "data-name": name }, "–");
  const set = (value, words) => {
    element.value = value;
    element.textContent = words;
  };
  return { element, set };
}

// Named figures, one below the other.
export function figures(names) {
  const list = make("dl", { class: "ft-figures" });
  const [labels, values] = [{}, {}];
  for (const [key, name] of Object.entries(names)) {
    labels[key] = make("dt", {}, name);
    values[key] = figure(key);
    list.append(make("div", {}, labels[key], make("dd", {}, values[key].element)));
  }
  return {
    element: list,
    set: (key, value, words) => values[key].set(value, words),
    rename: (key, name) => labels[key].replaceChildren(name),
  };
}

// Bars of tokens per second, one for each of `names`; undefined: not measured yet.
export function rateBars(names) {
  const element = make("dl", { class: "ft-rates" });
  const rows = {};
  for (const [key, name] of Object.entries(names)) {
    const bar = make("span", { class: `ft-${key}` });
    const value = figure(key);
    const swatch = make("span", { class: `ft-swatch ft-${key}` });
    const track = make("span", { class: "ft-rate" }, bar);
    element.append(
      make("div", {}, make("dt", {}, swatch, name), make("dd", {}, value.element, track)),
    );
    rows[key] = { bar, value };
  }
  const draw = (rates) => {
    const most = Math.max(...Object.values(rates).map((rate) => rate ?? 0));
    for (const [key, { bar, value }] of Object.entries(rows)) {
      const rate = rates[key];
      bar.style.width = rate ? `${(100 * rate) / most}%` : "0";
      value.set(rate ?? "", rate ? `${short(rate)} tokens/s` : "not yet");
    }
  };
  return { element, draw };
}
