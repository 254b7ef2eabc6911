// The component: a still figure that comes to life when the reader starts it. One module for both
// worlds: `mount` is called by a page of the website, `render` by JupyterLab (anywidget).
import { openEngine } from "./engine/client.js";
import { kernelHost, siteHost } from "./host.js";
import { openKernelEngine } from "./kernel.js";
import { cache } from "./views/cache.js";
import { inside } from "./views/inside.js";
import { nextToken } from "./views/next_token.js";
import { isFocusFree, status, waiting } from "./views/parts.js";
import { speculation } from "./views/speculation.js";
import { surprise } from "./views/surprise.js";
import frame from "built/loader_css.txt";
import style from "built/live_css.txt";

const VIEWS = { next_token: nextToken, inside, cache, speculation, surprise };
const NAMES = {
  next_token: "The next token, live",
  inside: "Inside the model, live",
  cache: "The cache, live",
  speculation: "Speculative decoding, live",
  surprise: "Loss per token, live",
};

// Put a view in the place of its still figure. `open(onProgress)` resolves to the engine that it asks.
// `shared` holds the settings: get() and set(changes) on this side, and onChange(handler) for changes
// from Python.
async function start(root, name, open, shared) {
  addStyle("ft-live-style", style);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", NAMES[name]);
  const wait = waiting(root);
  const engine = await untilLoaded(wait, open, shared.get().draft);
  wait.done();
  const end = VIEWS[name](root, engine, shared);
  // Of the drafts that a view offers, an engine may have some only.
  for (const option of root.querySelectorAll("option"))
    if (engine.drafts?.includes(option.value) === false) option.remove();
  return end;
}

// What fails on the way is told to the reader, who may have it tried again.
async function untilLoaded(wait, open, draft) {
  for (;;) {
    try {
      const engine = await open(wait.progress);
      if (draft) await engine.need(draft, wait.progress);
      return engine;
    } catch (error) {
      await new Promise((again) => wait.failed(error, again));
    }
  }
}

// The button that had the focus is gone: typing goes on in the view. Where a finger points, a
// keyboard on the screen would hide half of it, so there only the view itself is focused.
function focusInside(root) {
  if (!isFocusFree(root)) return; // the reader is elsewhere by now
  const field = root.querySelector("textarea, input, button");
  const finger = matchMedia("(pointer: coarse)").matches;
  root.tabIndex = -1;
  (finger || !field ? root : field).focus({ preventScroll: true });
}

function addStyle(id, text) {
  if (document.getElementById(id)) return;
  const sheet = document.createElement("style");
  sheet.id = id;
  sheet.textContent = text;
  document.head.append(sheet);
}

export async function mount(root) {
  let settings = JSON.parse(root.dataset.settings);
  const shared = {
    get: () => settings,
    set: (changes) => {
      settings = { ...settings, ...changes };
    },
    onChange: () => {},
  };
  const host = siteHost(root);
  const open = (onProgress) => openEngine(host, onProgress);
  const end = await start(root, root.dataset.view, open, shared);
  focusInside(root);
  return end;
}

// What is pressed on a button or slider is no command to JupyterLab, which knows that of text only.
function keepKeys({ target }) {
  if (!target.matches(":read-write")) target.dataset.lmSuppressShortcuts = "true";
}

function render({ model, el }) {
  addStyle("ft-live-frame", frame);
  const root = document.createElement("div");
  root.className = "ft-live";
  root.addEventListener("focusin", keepKeys);
  root.innerHTML = model.get("still");
  el.append(root);
  const ends = [];
  const shared = {
    get: () => model.get("settings"),
    set: (changes) => {
      model.set("settings", { ...model.get("settings"), ...changes });
      model.save_changes();
    },
    onChange: (handler) => {
      const heard = () => handler(model.get("settings"));
      model.on("change:settings", heard);
      ends.push(() => model.off("change:settings", heard));
    },
  };
  const begin = async (open) => ends.push(await start(root, model.get("view"), open, shared));
  const press = root.querySelector(".ft-live-start");
  const host = kernelHost(model);
  press?.addEventListener(
    "click",
    async () => {
      press.disabled = true;
      await begin((onProgress) => openEngine(host, onProgress));
      focusInside(root);
    },
    { once: true },
  );
  // What the kernel runs need not be loaded, and has no still to press.
  const line = status();
  const say = (words) => {
    line.element.hidden = !words;
    line.say(words);
  };
  if (!press) begin(() => openKernelEngine(model, say)).then(() => root.prepend(line.element));
  return () => ends.forEach((end) => end());
}

export { openEngine, siteHost };
export default { render };
