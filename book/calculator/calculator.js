// The calculator's page: a form, and a worker in which the library answers it. Nothing is computed
// here. Settings are the form's fields by name; a link carries them behind its #.
const root = document.querySelector(".ft-calculator");
const form = root.querySelector("form");
const results = root.querySelector(".ft-results");
const status = root.querySelector(".ft-status");
const note = root.querySelector(".ft-note");
const progress = root.querySelector("progress");
const copy = root.querySelector(".ft-copy");

const OWN = "config"; // in the menu of models: the pasted one
const MAX_LINK = 8000; // characters that mail and chat programs still pass on

let python; // the worker, once the reader has asked for it
let ready = false;
let busy = false; // a question is on its way
let changed = false; // and another one waits
let asked, good; // the settings of that question, and of the results that are shown

// The form.

function settings() {
  return Object.fromEntries(new FormData(form));
}

function showForm() {
  root.querySelector('[data-field="config"]').hidden = form.elements.model.value !== OWN;
  for (const slider of form.querySelectorAll("[data-of]")) {
    const value = Number(form.elements[slider.dataset.of].value);
    if (value >= 1) slider.value = Math.round(Math.log2(value));
    slider.setAttribute("aria-valuetext", form.elements[slider.dataset.of].value);
  }
}

function fill(values) {
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements.namedItem(name);
    if (!field) continue;
    // What no menu offers is shown as it came: the library says what is wrong with it.
    if (field.options && ![...field.options].some((option) => option.value === value)) {
      field.add(new Option(value, value));
    }
    field.value = value;
  }
  showForm();
}

form.addEventListener("input", ({ target }) => {
  if (target.dataset.of) form.elements[target.dataset.of].value = 2 ** target.value;
  showForm();
  if (ready) ask();
  else outdated(`These are still the earlier results.${python ? "" : " Press Calculate."}`);
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (ready) ask();
  else load();
});

// Python.

function load() {
  if (python) return;
  python = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  python.onmessage = ({ data }) => hear[data.kind](data);
  python.onerror = () => hear.failed({ reason: "the script did not start" });
  progress.value = 0;
  progress.hidden = false;
  say("Loading Python …");
}

const hear = {
  received({ bytes }) {
    progress.value += bytes / Number(root.dataset.bytes);
    if (progress.value > 0.999) say("Starting Python …");
  },
  ready() {
    ready = true;
    progress.hidden = true;
    note.textContent = "Results follow every change. It also works without a network now.";
    copy.hidden = false;
    ask();
  },
  failed({ reason }) {
    const before = ready ? "Python stopped" : "Python could not be loaded";
    python.terminate();
    python = undefined;
    ready = busy = false;
    progress.hidden = true;
    say(`${before} (${reason}). Press Calculate to try again.`);
  },
  answer(answer) {
    busy = false;
    if (changed) ask();
    else show(answer);
  },
};

function ask() {
  changed = busy;
  if (busy) return;
  busy = true;
  asked = settings();
  python.postMessage(asked);
}

// Answers.

function show({ results: html, summary, field, problem }) {
  for (const place of root.querySelectorAll(".ft-problem")) {
    const { field: name } = place.closest("[data-field]").dataset;
    place.hidden = name !== field;
    place.textContent = name === field ? problem : "";
    form.elements[name].setAttribute("aria-invalid", name === field);
  }
  if (problem) {
    outdated(field ? "Something is wrong above. These are the last good results." : problem);
    announce(problem);
    return;
  }
  const first = !good;
  good = asked;
  results.innerHTML = html;
  results.classList.remove("ft-outdated");
  announce(summary);
  // On a small screen the answer to the first question stands below the form.
  if (first) results.firstElementChild.scrollIntoView({ block: "nearest" });
}

function outdated(words) {
  results.classList.add("ft-outdated");
  results.dataset.note = words;
}

function say(words) {
  status.classList.remove("ft-unseen");
  status.textContent = words;
}

let settling;
// While a slider moves, a screen reader would never come to an end, and browsers refuse to change
// the address a hundred times.
function announce(words) {
  clearTimeout(settling);
  settling = setTimeout(() => {
    status.classList.add("ft-unseen");
    status.textContent = words;
    if (good) keepLink();
  }, 500);
}

// The link.

async function keepLink() {
  const link = await fragment(good);
  if (link.length <= MAX_LINK) history.replaceState(null, "", link);
  return link.length;
}

async function fragment({ config, ...rest }) {
  const values = new URLSearchParams(rest);
  if (rest.model === OWN) values.set("config", await packed(config));
  return `#${values}`;
}

async function restore() {
  const values = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!values.model) return; // a link to a heading
  if (values.config) values.config = await unpacked(values.config);
  fill(values);
  if (ready) ask();
  else load();
}

async function packed(text) {
  const bytes = await through(new CompressionStream("deflate-raw"), text);
  const binary = Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join("");
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpacked(packed) {
  try {
    const binary = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
    return new TextDecoder().decode(await through(new DecompressionStream("deflate-raw"), bytes));
  } catch {
    return packed; // a damaged link: the library says that this is no JSON
  }
}

function through(stream, content) {
  return new Response(new Blob([content]).stream().pipeThrough(stream)).arrayBuffer();
}

copy.addEventListener("click", async () => {
  clearTimeout(settling);
  const length = await keepLink();
  if (length > MAX_LINK) {
    say(
      `With this config.json the link has ${length} characters; up to ${MAX_LINK} are passed on. ` +
        "Leave out entries that do not describe the shape.",
    );
    return;
  }
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  } catch {
    say("The link stands in the browser's address bar; copy it from there.");
  }
});

addEventListener("hashchange", restore);
showForm();
restore();
