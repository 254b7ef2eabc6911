// A chat as a reader sees it: what is said, a field to say more, and the text that the model gets.
// All that is thought is thought elsewhere, in the kernel (chat.py) or by the page's own engine
// (conversation.js); here it is shown, as text.

const NAMES = { system: "System", user: "You", assistant: "Model" };
const BUSY = ["loading", "writing"];
const MOST_SEED = 2 ** 32 - 1;
let n_ids = 0;

const newId = () => `ft-chat-${++n_ids}-${Math.random().toString(36).slice(2, 8)}`;
const count = (n) => n.toLocaleString("en");

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function button(label, onPress, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") onPress();
  });
  return element;
}

// A field that grows with its text, and its label.
function textField(label, attributes) {
  const id = newId();
  const field = make("textarea", { id, rows: "1", ...attributes });
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
  };
  field.addEventListener("input", fit);
  const element = make("div", { class: "ft-message" }, make("label", { for: id }, label), field);
  return { element, field, fit };
}

function slider(value, onInput) {
  const id = newId();
  const input = make("input", { type: "range", id, min: "0", max: "2", step: "0.1" });
  input.value = value;
  const readout = make("span", { class: "ft-readout", "aria-hidden": "true" });
  const show = () => {
    readout.textContent = input.value === "0" ? "0: the likeliest" : input.value;
    input.setAttribute("aria-valuetext", readout.textContent);
    input.style.setProperty("--ft-at", `${50 * input.value}%`);
  };
  show();
  input.addEventListener("input", () => {
    show();
    onInput(Number(input.value));
  });
  const name = make("label", { for: id }, "Temperature");
  return make("div", { class: "ft-slider" }, name, readout, input);
}

// A whole number; what is no such number is marked and not handed on.
function seedField(value, onInput) {
  const id = newId();
  const input = make("input", { type: "number", id, min: "0", max: MOST_SEED, step: "1" });
  input.required = true;
  input.value = value;
  input.addEventListener("input", () => {
    const isWrong = !input.checkValidity();
    input.setAttribute("aria-invalid", String(isWrong));
    if (!isWrong) onInput(Number(input.value));
  });
  return make("div", { class: "ft-number" }, make("label", { for: id }, "Seed"), input);
}

// How full the model's context is. Before the model is there, its size is not known.
function contextMeter() {
  const words = make("span", { "aria-hidden": "true" });
  const bar = make("span");
  const track = make("span", { role: "meter", "aria-label": "Context", "aria-valuemin": "0" }, bar);
  const element = make("p", { class: "ft-chat-context" }, words, track);
  const show = ({ n_tokens = 0, max_context = 0 }) => {
    element.hidden = !max_context;
    words.textContent = `Context: ${count(n_tokens)} of ${count(max_context)} tokens`;
    track.setAttribute("aria-valuemax", max_context);
    track.setAttribute("aria-valuenow", n_tokens);
    track.setAttribute("aria-valuetext", `${count(n_tokens)} of ${count(max_context)} tokens`);
    bar.style.width = `${max_context && (100 * n_tokens) / max_context}%`;
  };
  return { element, show };
}

function saying({ role, content }) {
  const whose = role === "user" ? "user" : "model";
  const words = make("div", {}, content);
  if (!content) words.append(make("i", {}, "nothing"));
  return make(
    "div",
    { class: `ft-chat-said ft-chat-${whose}` },
    make("b", {}, NAMES[role] ?? role),
    words,
  );
}

// Replace children, and stay at the end if that is where the reader was.
function refill(box, children) {
  const wasAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  box.replaceChildren(...children);
  if (wasAtEnd) box.scrollTop = box.scrollHeight;
}

// Fill an element with the chat of a model, until the function that it returns is called.
export function chat(model, root) {
  const log = make("div", {
    class: "ft-chat-log",
    role: "region",
    tabindex: "0",
    "aria-label": "The conversation",
  });
  const message = textField("Your message", { placeholder: "Enter sends, Shift+Enter: new line" });
  const system = textField("System message", {
    placeholder: "Empty: what the template says itself",
  });
  system.field.value = model.get("settings").system;
  const settings = () => ({ system: system.field.value, temperature, seed });
  let { temperature, seed } = model.get("settings");
  const slide = slider(temperature, (value) => {
    temperature = value;
  });

  const luck = seedField(seed, (value) => {
    seed = value;
  });
  const context = contextMeter();

  const isBusy = () => BUSY.includes(model.get("state").phase);
  const send = () => {
    const text = message.field.value;
    if (isBusy() || !text.trim()) return;
    model.send({ kind: "send", text, settings: settings() });
    message.field.value = "";
    message.fit();
  };
  message.field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  const sendButton = button("Send", send, { class: "ft-primary" });
  const stopButton = button("Stop", () => model.send({ kind: "stop" }));
  const clearButton = button("Start over", () => {
    model.send({ kind: "clear" });
    message.field.focus();
  });
  const note = make("p", { class: "ft-note", role: "status" });
  const text = make("div", {
    class: "ft-output",
    role: "region",
    tabindex: "0",
    "aria-label": "The text that the model gets",
  });
  const key = make("p", { class: "ft-note" }, make("span", { class: "ft-chat-mark" }, "marks"));
  key.append(" are single tokens, which no message can write");
  const details = make(
    "details",
    { class: "ft-chat-details", open: "" },
    make("summary", {}, "The text that the model gets"),
    text,
    key,
  );
  root.replaceChildren(
    log,
    message.element,
    make("div", { class: "ft-row" }, sendButton, stopButton, clearButton, luck, slide),
    note,
    context.element,
    system.element,
    details,
  );

  let announced = "";
  const paint = () => {
    const state = model.get("state");
    const { phase, note: words, answer } = state;
    const isWriting = phase === "writing";
    const said = model.get("said").map(saying);
    if (isWriting) {
      const now = saying({ role: "assistant", content: answer || "…" });
      now.classList.add("ft-chat-now");
      said.push(now);
    }
    refill(log, said.length ? said : [make("p", { class: "ft-note" }, "Ask something.")]);
    log.setAttribute("aria-busy", String(isWriting));
    const parts = model.get("parts").map(([part, isMark]) => {
      return isMark ? make("span", { class: "ft-chat-mark" }, part) : part;
    });
    if (isWriting && answer) parts.push(make("span", { class: "ft-chat-written" }, answer));
    refill(text, parts);
    context.show(state);
    sendButton.setAttribute("aria-disabled", String(isBusy()));
    stopButton.setAttribute("aria-disabled", String(!isWriting));
    clearButton.setAttribute("aria-disabled", String(phase === "loading"));
    // A status is read aloud when it changes: once for reading, writing and the end.
    if (words !== announced) note.textContent = announced = words;
  };
  let frame = 0;
  const soon = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      paint();
    });
  };
  for (const name of ["said", "parts", "state"]) model.on(`change:${name}`, soon);
  paint();
  system.fit();
  return () => {
    cancelAnimationFrame(frame);
    for (const name of ["said", "parts", "state"]) model.off(`change:${name}`, soon);
  };
}

// What is pressed on a button or slider is no command to JupyterLab, which knows that of text only.
function keepKeys({ target }) {
  if (!target.matches(":read-write")) target.dataset.lmSuppressShortcuts = "true";
}

function render({ model, el }) {
  const root = make("div", {
    class: "ft-live ft-chat",
    role: "group",
    "aria-label": "A chat, live",
  });
  root.addEventListener("focusin", keepKeys);
  root.innerHTML = model.get("still");
  el.append(root);
  let end = () => {};
  const begun = () => ["ready", "writing"].includes(model.get("state").phase);
  const begin = (hasFocus) => {
    model.off("change:state", wait);
    end = chat(model, root);
    if (hasFocus) root.querySelector("textarea").focus({ preventScroll: true });
  };
  const wait = () => {
    if (begun()) return begin(root.contains(document.activeElement));
    const { phase, note } = model.get("state");
    if (phase !== "loading") start.removeAttribute("aria-disabled");
    start.nextElementSibling.textContent = note;
  };
  if (begun()) {
    begin(false);
    return () => end();
  }
  const start = root.querySelector(".ft-live-start");
  start.addEventListener("click", () => {
    if (start.getAttribute("aria-disabled")) return;
    start.setAttribute("aria-disabled", "true");
    start.nextElementSibling.textContent = "Waiting for the kernel …";
    model.send({ kind: "start" });
  });
  model.on("change:state", wait);
  return () => {
    model.off("change:state", wait);
    end();
  };
}

export default { render };
