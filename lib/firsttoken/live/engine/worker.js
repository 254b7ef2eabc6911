// The worker: it holds tokenizer and models, and answers the page. See client.js for the messages'
// other end.
/*! With parts of @huggingface/tokenizers, Apache License 2.0, and of @noble/hashes, MIT License,
    (c) 2022 Paul Miller. */
import { checkIds, checkIndex } from "./checks.js";
import { createEagle, createMedusa } from "./draft_heads.js";
import { likeliest, speculate, write } from "./generate.js";
import { createModel } from "./llama.js";
import { losses } from "./losses.js";
import { unpack } from "./packed.js";
import { argmax, largest, nextTokenDistribution, samplingParams, softmax } from "./sampling.js";
import { createTokenizer } from "./tokenizer.js";

const models = {};
let tokenizer;
let last; // what `next` has read: {ids, logits, cache}
const jobs = new Map();

const REQUESTS = { load, tokenize, decode, next, inside, logits, stats };
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
    return await start({ tokenizer, models }, asked, job);
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

// The tokens of a text: {ids, pieces}, each piece as a reader is shown it.
function tokenize({ text }) {
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
function next({ ids, params, top = 10 }) {
  const chosen = samplingParams(params);
  const context = ids.length ? ids : [models.target.arch.eos_id];
  checkIds(context, models.target.arch);
  const logits = lastLogits(models.target, context);
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

// The logits of the text that was asked for last are kept, and the cache of what it shares with the
// next one: a setting changes without a pass of the model, a letter at the end with a short one.
function lastLogits(model, ids) {
  last ??= { ids: [], cache: model.newCache(model.arch.max_context) };
  let shared = 0;
  while (shared < ids.length && ids[shared] === last.ids[shared]) shared += 1;
  if (shared < ids.length || shared < last.ids.length) {
    last.cache.truncate(Math.min(shared, ids.length - 1));
    last.logits = model.lastLogits(ids.slice(last.cache.length), last.cache);
    last.ids = ids;
  }
  return last.logits;
}

// A look into the pass over `ids`: {attention, layers, next}. `attention` [L·N·T·T] has a row per
// query. `layers`: the token that is likeliest after each layer, if it were the last. `next`: the
// likeliest tokens with all heads ("before") and with those in `silenced` left out ("after"), and
// `watched`, however likely.
function inside({ ids, silenced = [], watched }) {
  const { target } = models;
  checkIds(ids, target.arch);
  checkHeads(silenced, target.arch);
  const { attention, layerLogits, logits } = target.inside(ids, silenced);
  const before = softmax(lastLogits(target, ids));
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
// after another, p [V] the probabilities of the next token.
async function withoutEach({ models: { target } }, { ids, heads }, job) {
  checkIds(ids, target.arch);
  checkHeads(heads, target.arch);
  for (const [layer, head] of heads) {
    if (job.stopped) return;
    job.tell({ layer, head, p: softmax(target.lastLogits(ids, null, [[layer, head]])) });
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
