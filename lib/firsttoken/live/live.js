// The component: a still figure that comes to life when the reader starts it. One module for both
// worlds: `mount` is called by a page of the website, `render` by JupyterLab (anywidget).
import { chat } from "./chat.js";
import { openChoice, untilLoaded } from "./choice.js";
import { openConversation } from "./conversation.js";
import { openEngine, openRealEngine } from "./engine/client.js";
import { kernelHost, siteHost } from "./host.js";
import { openKernelEngine } from "./kernel.js";
import { cache } from "./views/cache.js";
import { inside } from "./views/inside.js";
import { nextToken } from "./views/next_token.js";
import { focusInside, status, waiting } from "./views/parts.js";
import { speculation } from "./views/speculation.js";
import { surprise } from "./views/surprise.js";
import frame from "built/loader_css.txt";
import style from "built/live_css.txt";

const VIEWS = { next_token: nextToken, inside, cache, speculation, surprise, chat: chatInPage };
const NAMES = {
  next_token: "The next token, live",
  inside: "Inside the model, live",
  cache: "The cache, live",
  speculation: "Speculative decoding, live",
  surprise: "Loss per token, live",
  chat: "A chat, live",
};

function dress(root, name) {
  addStyle("ft-live-style", style);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", NAMES[name]);
}

// Put a view into an element. `shared` holds the settings: get() and set(changes) on this side, and
// onChange(handler) for changes from Python. Returns what ends the view.
function show(name, root, engine, shared) {
  const end = VIEWS[name](root, engine, shared);
  // Of the drafts that a view offers, an engine may have some only.
  for (const option of root.querySelectorAll("option"))
    if (engine.drafts?.includes(option.value) === false) option.remove();
  return end;
}

function chatInPage(root, engine, shared) {
  const conversation = openConversation(engine, shared);
  root.classList.add("ft-chat");
  const end = chat(conversation, root);
  return () => {
    end();
    conversation.end();
  };
}

function addStyle(id, text) {
  if (document.getElementById(id)) return;
  const sheet = document.createElement("style");
  sheet.id = id;
  sheet.textContent = text;
  document.head.append(sheet);
}

export async function mount(root) {
  const { view } = root.dataset;
  dress(root, view);
  const end = await openChoice(root, siteHost(root), (...given) => show(view, ...given));
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
  const name = model.get("view");
  const begin = async (open) => {
    dress(root, name);
    const wait = waiting(root);
    const engine = await untilLoaded(wait, { open }, shared.get().draft, () => true);
    root.replaceChildren();
    ends.push(show(name, root, engine, shared));
  };
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

export { openEngine, openRealEngine, siteHost };
export default { render };
