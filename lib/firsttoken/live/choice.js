// Which model a view of the site asks: the book's small one, its real one where the site carries that,
// or a file of the reader's own. Each has settings of its own, which stay while another is shown.
import { openEngine, openRealEngine } from "./engine/client.js";
import { button, focusInside, isFocusFree, make, waiting } from "./views/parts.js";
import english from "./english.json";

const HERE =
  "It runs in this page: neither what you type nor a .gguf file that you drop here goes anywhere.";
const LITTLE_GB = 2; // of memory: a device with less may have no room for the real model
const FLOAT_BYTES = 4; // of a number in a page's cache

const ROUNDED_ON = 64; // tokens of a text on which rounding is tried

let isRealLoaded = false; // all views of the page share it: nobody need be asked again

// Bring a still figure to life. `show(element, engine, shared)` puts the view into an element, and
// returns what ends it; `shared` holds the settings.
export async function openChoice(root, host, show) {
  const { view } = root.dataset;
  const given = JSON.parse(root.dataset.settings);
  const small = { label: "small", open: (onProgress) => openEngine(host, onProgress) };
  const real = { label: "real", open: (onProgress) => openRealEngine(host, undefined, onProgress) };
  const startsReal = root.dataset.model === "real";
  let shown = startsReal ? real : small;
  let wanted = shown; // it is shown once it is there
  let nChosen = 0; // how often the reader has chosen
  let own; // the reader's file
  const files = new Set(); // all that the reader gave, until their memory is given back

  const still = root.querySelector(".ft-live-try");
  if (startsReal && hasLittleMemory()) await pressed(still, "Load it all the same");
  shown.engine = await untilLoaded(waiting(root), shown, given.draft, () => true);
  shown.shared = held(given);
  isRealLoaded ||= startsReal;
  root.replaceChildren();
  const file = await host.real().catch(() => null);
  if (!file) return show(root, shown.engine, shown.shared);

  const toggles = make("div", { class: "ft-row ft-models", role: "group", "aria-label": "Model" });
  const input = make("input", { type: "file", accept: ".gguf", hidden: true });
  const pick = button("Your own .gguf…", () => input.click());
  const about = make("p", { class: "ft-note", role: "status" });
  const place = make("div", { class: "ft-live-place" }); // of what is on its way, or did not come
  let body = make("div");
  let end = () => {};
  const box = make("input", { type: "checkbox" });
  const rounding = make("label", {}, box, " Round activations to 8 bits");
  const found = make("span", { class: "ft-note", role: "status" }); // what that changes
  const rounds = make("div", { class: "ft-row" }, rounding, found);
  root.append(make("div", { class: "ft-row" }, toggles, pick, input), about, place, rounds, body);
  swap(shown);
  drawModels();
  box.addEventListener("change", round);
  input.addEventListener("change", () => {
    if (input.files.length) takeFile(input.files[0]);
    input.value = "";
  });
  listenForFiles(root, takeFile);

  function drawModels() {
    const models = [!startsReal && small, real, own].filter(Boolean);
    const focused = [...toggles.children].indexOf(document.activeElement);
    const buttons = models.map((model) => {
      const press = button(model.label, () => choose(model));
      press.setAttribute("aria-pressed", String(model === wanted));
      return press;
    });
    toggles.replaceChildren(...buttons);
    toggles.hidden = models.length === 1;
    buttons[focused]?.focus();
    about.textContent = `${kindOf(wanted)} ${HERE}`;
    rounds.hidden = shown === small;
  }

  // All views of the page that ask this model get its answers so from now on; this one asks anew.
  async function round() {
    const model = shown;
    const on = box.checked;
    box.disabled = true;
    found.textContent = "Trying it on your text …";
    let words;
    try {
      words = await rounded(model, on);
    } catch (error) {
      words = error.message;
    }
    box.disabled = false;
    if (model !== shown) return; // the reader looks at another by now
    if (isFocusFree(root)) box.focus();
    swap(model);
    found.textContent = words;
  }

  async function rounded({ engine, shared }, on) {
    const { text, said } = shared.get();
    const asked = text === undefined ? engine.chat({ messages: said }) : engine.tokenize(text);
    // A chat may not have begun, or its template may refuse it: then it is tried on the mark alone.
    const { ids } = await asked.catch(() => ({ ids: [] }));
    const start = engine.arch("target").eos_id;
    const { largest, kl_bits, step_ms } = await engine.round({
      on,
      ids: [start, ...ids].slice(0, ROUNDED_ON),
    });
    engine.rounding.on = on;
    engine.rounding.listeners.forEach((listener) => listener());
    if (!on) return "";
    return (
      `On the beginning of your text the next token's logits move by ${largest.toFixed(2)} at most, ` +
      `its distribution by ${kl_bits.toFixed(4)} bits (KL). A step takes ` +
      `${step_ms.rounded.toFixed(1)} ms in place of ${step_ms.exact.toFixed(1)}.`
    );
  }

  // Each model is rounded or not, for all views of the page.
  function showRounding() {
    box.checked = Boolean(shown.engine.rounding?.on);
    found.textContent = "";
  }

  function kindOf(model) {
    if (model === own) return `${own.label}, your own file.`;
    if (model === real) return `${file.name}, a model that knows English.`;
    const millions = (small.engine.arch("target").n_params / 1e6).toFixed(1);
    return `The book's own model: ${millions} million parameters, trained on Python's library.`;
  }

  // What has to be loaded first, is, while the view goes on with the model that it has.
  async function choose(model) {
    if (model === wanted) return;
    wanted = model;
    nChosen += 1;
    const mine = nChosen;
    const isWanted = () => mine === nChosen;
    place.replaceChildren();
    drawModels();
    if (model === shown) return;
    if (!model.engine) {
      if (model === real && !isRealLoaded) {
        await pressed(place, `Load it: ${megabytes(file.bytes)}, once`);
        place.replaceChildren();
      }
      const engine = await untilLoaded(waiting(place), model, english[view].draft, isWanted);
      if (!engine) return;
      model.engine = engine;
      isRealLoaded ||= model === real;
      if (!isWanted()) return;
      const wasHere = isFocusFree(place);
      place.replaceChildren();
      swap(model);
      if (wasHere) focusInside(body);
    } else swap(model);
  }

  function swap(model) {
    end();
    model.shared ??= held(settingsFor(model.engine.arch("target")));
    shown = model;
    endReplaced();
    model.engine.rounding?.listeners.add(showRounding);
    showRounding();
    box.disabled = false; // what is tried on another model may never be answered
    const fresh = make("div", { class: "ft-live-view" });
    body.replaceWith(fresh);
    body = fresh;
    rounds.hidden = model === small;
    end = show(body, model.engine, model.shared);
  }

  // At first a model has the reader's settings, but for those that another model has otherwise, and a
  // text of its own, unless the reader has written one.
  function settingsFor({ n_layers, n_heads, n_kv_heads, head_dim }) {
    const now = shown.shared.get();
    const settings = { ...now, ...english[view] };
    if (now.text !== given.text && now.text !== settings.text) settings.text = now.text;
    if (settings.layer >= n_layers) settings.layer = 0;
    if (settings.head >= n_heads) settings.head = 0;
    if (settings.bytes_per_token) {
      settings.bytes_per_token = 2 * n_layers * n_kv_heads * head_dim * FLOAT_BYTES;
    }
    return settings;
  }

  function takeFile(chosen) {
    if (!chosen.name.endsWith(".gguf")) {
      place.replaceChildren(make("p", { role: "alert" }, `${chosen.name} is no .gguf file.`));
      return;
    }
    const open = (onProgress) => openRealEngine(host, chosen, onProgress);
    own = { label: chosen.name, open };
    files.add(own);
    choose(own).then(endReplaced);
  }

  // Files that another has replaced give their memory back, unless one of them is still shown.
  function endReplaced() {
    for (const model of files) {
      if (model === own || model === shown || !model.engine) continue;
      model.engine.end();
      files.delete(model);
    }
  }

  return () => end();
}

// What holds the settings of a view on the site.
function held(settings) {
  return {
    get: () => settings,
    set: (changes) => {
      settings = { ...settings, ...changes };
    },
    onChange: () => {},
  };
}

// Resolve to the engine, or to nothing if it is no longer wanted. What fails on the way is told to the
// reader, who may have it tried again.
export async function untilLoaded(wait, { open }, draft, isWanted) {
  const onProgress = (...progress) => {
    wait.progress(...progress);
    return isWanted(); // if nobody waits for it any more, it need not be loaded
  };
  for (;;) {
    try {
      const engine = await open(onProgress);
      if (draft) await engine.need(draft, onProgress);
      return engine;
    } catch (error) {
      if (!isWanted()) return undefined;
      await new Promise((again) => wait.failed(error, again));
    }
  }
}

// Resolve when the reader has pressed a button; if something else takes its place, never.
function pressed(place, label) {
  return new Promise((resolve) => {
    const row = make("div", { class: "ft-row" }, button(label, resolve, { primary: true }));
    if (hasLittleMemory()) row.append(make("span", { role: "alert" }, littleMemory()));
    place.replaceChildren(row);
  });
}

const megabytes = (bytes) => `${Math.round(bytes / 1e6)} MB`;
const hasLittleMemory = () => navigator.deviceMemory < LITTLE_GB;
const littleMemory = () =>
  `The model takes some 300 MB of memory, and this device has ${navigator.deviceMemory} GB: ` +
  "the browser may close the page.";

// A .gguf file that is dropped is taken; others are left to the view, and told if it takes none.
function listenForFiles(root, take) {
  const dropped = (event) => event.dataTransfer?.files[0];
  root.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  const drop = (event) => {
    const file = dropped(event);
    const isLast = event.eventPhase !== Event.CAPTURING_PHASE;
    if (!file || event.defaultPrevented || (!isLast && !file.name.endsWith(".gguf"))) return;
    event.preventDefault();
    event.stopPropagation();
    take(file);
  };
  root.addEventListener("drop", drop, true);
  root.addEventListener("drop", drop);
}
