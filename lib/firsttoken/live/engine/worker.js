// The worker: it holds tokenizer and models, and answers the page. See client.js for the messages'
// other end.
/*! With parts of @huggingface/jinja, MIT License, (c) 2023 Hugging Face, and of @noble/hashes, MIT
    License, (c) 2022 Paul Miller. */
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";
import { createChatTemplate } from "./chat_template.js";
import { checkIds, checkIndex } from "./checks.js";
import { createEagle, createMedusa } from "./draft_heads.js";
import { likeliest, speculate, write } from "./generate.js";
import { openGguf } from "./gguf_llama.js";
import { openLastText } from "./last_text.js";
import { losses } from "./losses.js";
import { openKernel } from "./memory.js";
import { unpack } from "./packed.js";
import { argmax, largest, nextTokenDistribution, samplingParams, softmax } from "./sampling.js";
import { createModel } from "./shipped.js";
import { createTokenizer } from "./tokenizer.js";

const STEPS = 5; // are timed

const models = {};
let tokenizer;
let template; // of chats; made when the first one comes
let arriving; // a file on its way: {heap, at, size, received, digest}
let last; // what was read last
// By view, the job of its last `next`: a text that was edited need not be read to its end.
const readings = new Map();
const jobs = new Map();

const REQUESTS = {
  ...{ load, receive, piece, open },
  ...{ tokenize, decode, next, inside, logits, stats, chat, parts, known, round },
};
const JOBS = { write, speculate, losses, withoutEach };

self.onmessage = async ({ data: { id, name, asked } }) => {
  if (name === "stop") {
    if (jobs.has(id)) jobs.get(id).stopped = true;
    return;
  }
  try {
    const value = await (name in JOBS ? run(id, JOBS[name], asked) : REQUESTS[name](asked));
    self.postMessage({ id, kind: "done", value }, buffers(value));
  } catch (error) {
    self.postMessage({ id, kind: "failed", value: error.message });
  }
};

// What is handed over rather than copied: attention over 512 tokens takes 50 MB.
function buffers(value = {}) {
  const parts = ArrayBuffer.isView(value) ? [value] : Object.values(value);
  return parts.filter(ArrayBuffer.isView).map((part) => part.buffer);
}

// A job reports with job.tell(value), and gives way to others with `await job.turn()`.
async function run(id, start, asked) {
  const job = {
    stopped: false,
    turn,
    tell: (value) => self.postMessage({ id, kind: "event", value }),
  };
  jobs.set(id, job);
  try {
    return await start({ tokenizer, models, lastText }, asked, job);
  } finally {
    jobs.delete(id);
  }
}

// Wait until all others that wait have had their turn, jobs and messages alike: a message to
// oneself is the last in the queue, and unlike a timer not slowed down.
const channel = new MessageChannel();
const queue = [];
channel.port1.onmessage = () => queue.shift()();
function turn() {
  return new Promise((resolve) => {
    queue.push(resolve);
    channel.port2.postMessage(null);
  });
}

// Take a model's packed files; the target's come with the tokenizer. Gives the architecture.
async function load({ model, files }) {
  const found = {};
  for (const { name, entry, bytes } of files) found[name] = await unpack(bytes, name, entry);
  const json = (name) => JSON.parse(new TextDecoder().decode(found[name]));
  if (found["tokenizer.json"]) tokenizer = createTokenizer(json("tokenizer.json"));
  const weights = found[`${model}/model.safetensors`];
  if (model === "medusa_heads") {
    models[model] = createMedusa(weights);
  } else {
    const create = model === "eagle_draft" ? createEagle : createModel;
    models[model] = create(json(`${model}/config.json`), weights);
  }
  return models[model].arch;
}

// A GGUF file comes in pieces, to lie in the kernel's memory as it is. {n_bytes}: so many in all.
function receive({ n_bytes: size }) {
  const heap = openKernel();
  arriving = { heap, at: heap.take(size), size, received: 0, digest: sha256.create() };
}

function piece({ bytes }) {
  const { heap, at, size, received } = arriving;
  // A file that is longer than was said is told at the end.
  if (received + bytes.length <= size) {
    new Uint8Array(heap.kernel.memory.buffer).set(bytes, at + received);
  }
  arriving.received += bytes.length;
  arriving.digest.update(bytes);
}

// All has come: check it against its SHA-256, if one is given, and read it. Gives the architecture.
function open({ sha256: expected }) {
  const { heap, at, size, received, digest } = arriving;
  if (received > size) {
    throw new Error(`The file has ${received} bytes, expected ${size}. Try again.`);
  }
  if (received < size) {
    throw new Error(`The file broke off after ${received} of ${size} bytes. Try again.`);
  }
  if (expected && bytesToHex(digest.digest()) !== expected) {
    throw new Error("The file is not the one that was shipped: its bytes were altered. Try again.");
  }
  const found = openGguf(heap, at, size);
  tokenizer = found.tokenizer;
  models.target = found.model;
  return found.model.arch;
}

// A template that is no Jinja, or none that is read here, is told who chats: all else goes without it.
function chatTemplate() {
  const { chat_template: source } = tokenizer;
  if (!source) throw new Error("This model has no chat template: it was not made for chats.");
  return (template ??= createChatTemplate(source, tokenizer));
}

// The text that a model gets of a conversation: {ids, parts}, up to where its answer begins, or without
// that beginning.
function chat({ messages, add_generation_prompt: begun = true }) {
  const ids = chatTemplate().encode(messages, begun);
  return { ids, parts: parts({ ids }) };
}

// The same text of some ids, [[text, whether it is a mark], …].
function parts({ ids }) {
  return chatTemplate().parts(ids);
}

// Round what goes into products to eight bits, or leave it as it is. What that changes on some ids:
// {largest, kl_bits, step_ms: {exact, rounded}}, of the logits and the distribution of the next token,
// and the time of a step.
function round({ on, ids }) {
  const { target } = models;
  checkIds(ids, target.arch);
  last?.forget(); // what was read the other way
  const cache = target.newCache(ids.length + STEPS);
  const [exact, rounded] = [false, true].map((way) => {
    target.round(way);
    cache.truncate(0);
    const logits = target.lastLogits(ids, cache);
    const times = Array.from({ length: STEPS }, () => {
      const startMs = performance.now();
      target.lastLogits(ids.slice(-1), cache);
      return performance.now() - startMs;
    });
    return { logits, p: softmax(logits), ms: Math.min(...times) };
  });
  cache.free();
  target.round(on);
  const gaps = exact.logits.map((x, id) => Math.abs(x - rounded.logits[id]));
  return {
    largest: gaps[argmax(gaps)],
    kl_bits: exact.p.reduce((sum, p, id) => sum + (p && p * Math.log2(p / rounded.p[id])), 0),
    step_ms: { exact: exact.ms, rounded: rounded.ms },
  };
}

// How many of the tokens need not be read again.
function known({ ids }) {
  return lastText().nKnown(ids);
}

// The tokens of a text: {ids, pieces}, each piece as a reader is shown it.
function tokenize({ text, view }) {
  const reading = readings.get(view);
  if (reading) reading.stopped = true; // the text is another by now
  const ids = tokenizer.encode(text);
  return { ids, pieces: ids.map((id) => tokenizer.named(id).piece) };
}

// The text of some tokens, as what each of them completes; together they are the text.
function decode({ ids }) {
  const stream = tokenizer.stream();
  const parts = ids.map(stream.push);
  if (parts.length) parts[parts.length - 1] += stream.finish();
  return parts;
}

// What may follow `ids` (none: the beginning of a text): {top, n_kept, entropy_bits,
// kept_entropy_bits}. `top` are the likeliest, [{id, piece, p, kept}]: p as the model says, kept
// after all settings, 0 if dropped. The entropies are those of p and of kept.
async function next({ ids, params, top = 10, view }) {
  const chosen = samplingParams(params);
  const context = ids.length ? ids : [models.target.arch.eos_id];
  checkIds(context, models.target.arch);
  const reading = { stopped: false, turn };
  readings.set(view, reading);
  const logits = await lastText().read(context, reading);
  if (!logits) throw new Error(""); // the view asks again by itself
  const p = softmax(logits);
  const kept = nextTokenDistribution(logits, chosen, context);
  return {
    top: likeliest(tokenizer, p, kept, top),
    n_kept: kept.filter((x) => x > 0).length,
    entropy_bits: entropyBits(p),
    kept_entropy_bits: entropyBits(kept),
  };
}

function entropyBits(probabilities) {
  return probabilities.reduce((bits, x) => (x > 0 ? bits - x * Math.log2(x) : bits), 0);
}

// The text that was asked for last: a setting changes without a pass of the model, a letter at the
// end with a short one.
function lastText() {
  return (last ??= openLastText(models.target));
}

// A look into the pass over `ids`: {attention, layers, next}. `attention` [L·N·T·T] has a row per
// query. `layers`: the token that is likeliest after each layer, if it were the last. `next`: the
// likeliest tokens with all heads ("before") and with those in `silenced` left out ("after"), and
// `watched`, however likely.
async function inside({ ids, silenced = [], watched }) {
  const { target } = models;
  checkIds(ids, target.arch);
  checkHeads(silenced, target.arch);
  const { attention, layerLogits, logits } = target.inside(ids, silenced);
  const before = softmax(await lastText().read(ids, { stopped: false, turn }));
  const after = silenced.length ? softmax(logits) : before;
  const shown = new Set([...largest(before, 5), ...largest(after, 5)]);
  if (watched !== undefined) shown.add(watched);
  return {
    attention,
    layers: byLayer(layerLogits, target.arch),
    next: [...shown]
      .map((id) => ({ ...tokenizer.named(id), before: before[id], after: after[id] }))
      .sort((a, b) => b.before - a.before),
  };
}

// What follows `ids` if one head is silent, for each of `heads` by itself. Tells {layer, head, p} one
// after another, p the probabilities of the tokens in `watch`, by id.
async function withoutEach({ models: { target } }, { ids, heads, watch }, job) {
  checkIds(ids, target.arch);
  checkHeads(heads, target.arch);
  const without = target.withoutHead(ids);
  for (const [layer, head] of heads) {
    if (job.stopped) return;
    const p = softmax(without(layer, head));
    job.tell({ layer, head, p: Object.fromEntries(watch.map((id) => [id, p[id]])) });
    await job.turn();
  }
}

function byLayer(layerLogits, { n_layers, vocab_size }) {
  return Array.from({ length: n_layers }, (_, layer) => {
    const p = softmax(layerLogits.subarray(layer * vocab_size, (layer + 1) * vocab_size));
    const id = argmax(p);
    return { ...tokenizer.named(id), p: p[id] };
  });
}

function checkHeads(silenced, { n_layers, n_heads }) {
  for (const [layer, head] of silenced) {
    checkIndex("layer", layer, n_layers);
    checkIndex("head", head, n_heads);
  }
}

// The logits [T·V] that follow each token of `ids`; with the cache every token is read alone.
function logits({ model, ids, use_cache = false }) {
  const read = models[model];
  if (!read?.forward) throw new Error(`model must be target or draft and loaded, got ${model}`);
  checkIds(ids, read.arch);
  if (!use_cache) return read.forward(ids);
  const cache = read.newCache(ids.length);
  const rows = new Float32Array(ids.length * read.arch.vocab_size);
  ids.forEach((id, i) => rows.set(read.forward([id], cache), i * read.arch.vocab_size));
  cache.free();
  return rows;
}

// {memory_bytes}: what the models take, their caches included.
function stats() {
  return { memory_bytes: Object.values(models).reduce((sum, m) => sum + m.memoryBytes, 0) };
}
