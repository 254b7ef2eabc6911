// The component: a still figure that comes to life when the reader starts it. One module for both
// worlds: `mount` is called by a page of the website, `render` by JupyterLab (anywidget).
import { openEngine } from "./engine/client.js";
import { kernelHost, siteHost } from "./host.js";
import { cache } from "./views/cache.js";
import { inside } from "./views/inside.js";
import { nextToken } from "./views/next_token.js";
import { waiting } from "./views/parts.js";
import { speculation } from "./views/speculation.js";
import { surprise } from "./views/surprise.js";
import style from "./live.css";

const VIEWS = { next_token: nextToken, inside, cache, speculation, surprise };
const NEEDS_DRAFT = ["speculation"];

// Put a view in the place of its still figure. `shared` holds the settings: get() and
// set(changes) on this side, and onChange(handler) for changes from Python.
async function start(root, name, host, shared) {
  if (!document.getElementById("ft-live-style")) {
    const sheet = document.createElement("style");
    sheet.id = "ft-live-style";
    sheet.textContent = style;
    document.head.append(sheet);
  }
  const wait = waiting(root);
  try {
    const engine = await openEngine(host, wait.progress);
    if (NEEDS_DRAFT.includes(name)) await engine.need("draft", wait.progress);
    wait.done();
    return VIEWS[name](root, engine, shared);
  } catch (error) {
    wait.failed(error);
    return () => {};
  }
}

export function mount(root) {
  let settings = JSON.parse(root.dataset.settings);
  const shared = {
    get: () => settings,
    set: (changes) => {
      settings = { ...settings, ...changes };
    },
    onChange: () => {},
  };
  return start(root, root.dataset.view, siteHost(root), shared);
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "ft-live";
  root.innerHTML = model.get("still");
  el.append(root);
  const shared = {
    get: () => model.get("settings"),
    set: (changes) => {
      model.set("settings", { ...model.get("settings"), ...changes });
      model.save_changes();
    },
    onChange: (handler) => model.on("change:settings", () => handler(model.get("settings"))),
  };
  const host = kernelHost(model);
  let stop = () => {};
  const begin = async () => {
    button?.removeEventListener("click", begin);
    stop = await start(root, model.get("view"), host, shared);
  };
  const button = root.querySelector(".ft-live-start");
  button?.addEventListener("click", begin);
  return () => stop();
}

export { openEngine, siteHost };
export default { render };
