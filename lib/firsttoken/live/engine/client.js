// The page's side of the engine: one worker for all views of a page, asked by messages.
//
// openEngine(host, onProgress) resolves to the engine of the shipped pair, openRealEngine(host, source,
// onProgress) to that of a real model, in a worker of its own. What they can be asked is described
// beside the functions that answer, in worker.js, generate.js and losses.js. Most requests resolve
// once. Jobs also report on their way and can be stopped: `write`, `speculate` and `withoutEach`
// return {done, stop()}, `losses` a promise that has a `stop()`.
import worker from "built/worker.txt";

const FILES = {
  target: ["tokenizer.json", "target/config.json", "target/model.safetensors"],
  draft: ["draft/config.json", "draft/model.safetensors"],
  pruned_draft: ["pruned_draft/config.json", "pruned_draft/model.safetensors"],
  suffix_automaton: [],
  medusa_heads: ["medusa_heads/model.safetensors"],
  eagle_draft: ["eagle_draft/config.json", "eagle_draft/model.safetensors"],
};

const PIECE_BYTES = 2 ** 20; // of a file on its way to the worker

// JupyterLab loads this module once per widget, yet all views of a page share an engine.
const engines = (globalThis.firstTokenEngines ??= new Map());

// Load the tokenizer and the target, or take what another view has loaded.
// onProgress(loaded, total): bytes on their way.
export async function openEngine(host, onProgress) {
  const { version } = host;
  if (!engines.has(version)) {
    const thread = startWorker(() => engines.delete(version));
    engines.set(version, { ...thread, models: new Map() });
  }
  const shared = engines.get(version);
  const need = (model, progress) => load(shared, model, host, progress);
  await need("target", onProgress);
  const arch = (model) => {
    const found = shared.models.get(model)?.arch;
    if (!found) throw new Error(`${model} is not loaded: \`need\` it first.`);
    return found;
  };
  return { need, arch, ...questions(shared) };
}

// Load a model from a GGUF file: the site's own, or `source`, a File of the reader's. Where all who
// hear of the progress return false, nobody wants it any more, and it is given up. `end()` gives back
// the memory of a File's model.
export async function openRealEngine(host, source, onProgress) {
  const key = source ?? (await host.real()).sha256;
  if (!engines.has(key)) {
    const forget = () => engines.delete(key);
    const thread = startWorker(forget);
    const listeners = new Set();
    const tell = (...progress) => {
      const wanted = Array.from(listeners, (listener) => listener(...progress) !== false);
      if (wanted.length && !wanted.includes(true)) throw new Error("Nobody waits for it any more.");
    };
    const done = loadFile(thread, host, source, tell).catch((error) => {
      forget();
      thread.end();
      throw error;
    });
    const rounding = { on: false, listeners: new Set() };
    engines.set(key, { ...thread, listeners, done, rounding });
  }
  const { listeners, done, rounding, ...thread } = engines.get(key);
  if (onProgress) listeners.add(onProgress);
  const arch = await done;
  return {
    drafts: ["suffix_automaton"],
    need: async () => {},
    arch: () => arch,
    rounding, // as all views of the page see it
    end: () => {
      if (!source) return; // other views may ask the site's
      engines.delete(source);
      thread.end();
    },
    ...questions(thread),
  };
}

async function loadFile({ request }, host, source, onProgress) {
  const file = source ? ownFile(source) : await host.real();
  await request("receive", { n_bytes: file.bytes });
  let received = 0;
  onProgress(received, file.bytes);
  for await (const bytes of file.pieces()) {
    received += bytes.length;
    await request("piece", { bytes }, [bytes.buffer]);
    onProgress(received, file.bytes);
  }
  try {
    const arch = await request("open", { sha256: file.sha256 });
    return { ...arch, name: file.name };
  } catch (error) {
    await file.forget(); // what came may be damaged
    throw error;
  }
}

// A file of the reader's own: it is read in the page, and goes nowhere.
function ownFile(file) {
  async function* pieces() {
    for (let at = 0; at < file.size; at += PIECE_BYTES) {
      yield new Uint8Array(await file.slice(at, at + PIECE_BYTES).arrayBuffer());
    }
  }
  return { name: file.name, bytes: file.size, pieces, forget: async () => {} };
}

function questions({ request, job }) {
  const view = Math.random(); // another one's texts are not edited here
  return {
    tokenize: (text) => request("tokenize", { text, view }),
    decode: (ids) => request("decode", { ids }),
    next: (asked) => request("next", { ...asked, view }),
    inside: (asked) => request("inside", asked),
    logits: (asked) => request("logits", asked),
    stats: () => request("stats", {}),
    chat: (asked) => request("chat", asked),
    parts: (asked) => request("parts", asked),
    known: (asked) => request("known", asked),
    round: (asked) => request("round", asked),
    write: (asked, onToken) => job("write", asked, onToken),
    speculate: (asked, onRound) => job("speculate", asked, onRound),
    withoutEach: (asked, onHead) => job("withoutEach", asked, onHead),
    losses: (asked, onProgress) => {
      const { done, stop } = job("losses", asked, (progress) => onProgress?.(...progress));
      return Object.assign(done, { stop });
    },
  };
}

// Load a model once, and of what has no files nothing. What failed is forgotten, so that it can be
// tried again.
function load(shared, model, host, onProgress) {
  if (!FILES[model]) throw new Error(`model must be target or draft, got ${model}`);
  if (!FILES[model].length) return Promise.resolve();
  const { models } = shared;
  if (!models.has(model)) {
    const listeners = new Set();
    const tell = (...progress) => listeners.forEach((listener) => listener(...progress));
    const fetched = fetchModel(shared, model, host, tell).catch(async (error) => {
      await host.forget(); // what came may be damaged
      throw error;
    });
    const loading = { listeners, done: fetched };
    models.set(model, loading);
    loading.done.then(
      (arch) => (loading.arch = arch),
      () => models.delete(model),
    );
  }
  const loading = models.get(model);
  if (onProgress) loading.listeners.add(onProgress);
  return loading.done.then(() => {});
}

async function fetchModel({ request }, model, host, onProgress) {
  const manifest = await host.manifest();
  const total = FILES[model].reduce((sum, name) => sum + manifest[name].packed_bytes, 0);
  const loaded = new Map();
  const add = (name, n) => {
    loaded.set(name, n);
    onProgress(
      [...loaded.values()].reduce((a, b) => a + b),
      total,
    );
  };
  const files = await Promise.all(
    FILES[model].map(async (name) => {
      const entry = manifest[name];
      add(name, 0);
      const bytes = await host.file(name, (n) => add(name, loaded.get(name) + n));
      add(name, entry.packed_bytes); // what the browser has kept comes without a word
      return { name, entry, bytes };
    }),
  );
  return request(
    "load",
    { model, files },
    files.map((file) => file.bytes),
  );
}

// Start the worker from its text: a page of a notebook has no place to load a second file from.
function startWorker(onFailure) {
  const address = URL.createObjectURL(new Blob([worker], { type: "text/javascript" }));
  const thread = new Worker(address, { type: "module" });
  const waiting = new Map();
  let lastId = 0;
  let failure;
  const post = (name, asked, transfer, onEvent) => {
    const id = ++lastId;
    const done = new Promise((resolve, reject) => {
      if (failure) throw failure;
      waiting.set(id, { resolve, reject, onEvent });
      thread.postMessage({ id, name, asked }, transfer);
    });
    return { id, done };
  };
  thread.onmessage = ({ data: { id, kind, value } }) => {
    const { resolve, reject, onEvent } = waiting.get(id);
    if (kind === "event") return onEvent?.(value);
    waiting.delete(id);
    if (kind === "failed") reject(new Error(value));
    else resolve(value);
  };
  // Errors of requests come as messages; this is a worker that does not run at all.
  thread.onerror = ({ message }) => {
    failure = new Error(
      `The browser cannot run the model: ${message ?? "no worker started"}. Reload the page to try again.`,
    );
    for (const { reject } of waiting.values()) reject(failure);
    onFailure();
  };
  return {
    end: () => thread.terminate(),
    request: (name, asked, transfer = []) => post(name, asked, transfer).done,
    job: (name, asked, onEvent) => {
      const { id, done } = post(name, asked, [], onEvent);
      return { done, stop: () => thread.postMessage({ id, name: "stop" }) };
    },
  };
}
