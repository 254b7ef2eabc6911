// The Llama model of lib/firsttoken/llama.py in the page: token ids in, logits out. Products,
// attention and the gate are in kernel.wat; the rest is here.
//
// Letters as in the book: T new tokens, D width, N heads, K KV heads, H their size, F width of the
// MLP, V vocabulary, L layers. What starts with "at" is an address in the kernel's memory.
import kernelBytes from "built/kernel.wasm";

import { checkCount, checkIndex } from "./checks.js";
import { checkShapes, readSafetensors } from "./safetensors.js";

const CHUNK = 32; // so many tokens go through the layers together, in memory taken once
const BLOCK = 16; // so many keys does the kernel compare at once

export function createModel(config, weightsBuffer) {
  const arch = readConfig(config);
  const tensors = readSafetensors(weightsBuffer);
  checkShapes(tensors, weightShapes(arch));
  const heap = openKernel();
  const weights = loadWeights(heap, arch, weightsBuffer, tensors);
  const run = openPass(heap, arch, weights);
  let ownCache; // for passes that keep nothing; made when the first of them comes

  const cacheFor = (ids, cache) => {
    if (cache) return cache;
    if (!ownCache || ownCache.capacity < ids.length) {
      ownCache?.free();
      ownCache = openCache(heap, arch, Math.max(ids.length, arch.max_context));
    }
    ownCache.truncate(0);
    return ownCache;
  };

  return {
    arch,
    get memoryBytes() {
      return heap.kernel.memory.buffer.byteLength;
    },
    newCache: (capacity = arch.max_context) => openCache(heap, arch, capacity),

    // The logits [T·V] that follow each of the tokens; with a cache they continue what it holds.
    forward(ids, cache = null) {
      const logits = new Float32Array(ids.length * arch.vocab_size);
      const afterChunk = (from, n) => logits.set(run.logits(0, n), from * arch.vocab_size);
      run.pass(ids, cacheFor(ids, cache), { afterChunk });
      return logits;
    },

    // The logits [V] after the last token. The [layer, head] in `silenced` add nothing to their
    // layer's output.
    lastLogits(ids, cache = null, silenced = []) {
      const n = run.pass(ids, cacheFor(ids, cache), { silenced });
      return run.logits(n - 1, 1).slice();
    },

    // What the model thinks at each of the tokens [T·D], for `logitsOf`.
    features(ids, cache) {
      const features = new Float32Array(ids.length * arch.d_model);
      const afterChunk = (from, n) => features.set(run.features(0, n), from * arch.d_model);
      run.pass(ids, cache, { afterChunk });
      return features;
    },

    // The logits [n·V] that features [n·D] stand for.
    logitsOf(features) {
      const { d_model, vocab_size } = arch;
      const n = features.length / d_model;
      const logits = new Float32Array(n * vocab_size);
      for (let from = 0; from < n; from += CHUNK) {
        const rows = features.subarray(from * d_model, (from + CHUNK) * d_model);
        logits.set(run.logitsOf(rows), from * vocab_size);
      }
      return logits;
    },

    // The vectors [n·D] that tokens come in as.
    embeddings: (ids) => run.embeddings(ids),

    // A look into one pass without a cache: who looked where, and what each layer would have said
    // of the next token.
    inside(ids, silenced = []) {
      const { n_layers, n_heads, vocab_size } = arch;
      const size = ids.length;
      const attention = new Float32Array(n_layers * n_heads * size * size);
      const layerLogits = new Float32Array(n_layers * vocab_size);
      const n = run.pass(ids, cacheFor(ids, null), {
        silenced,
        onAttention(layer, head, query, unscaled, total) {
          const row = ((layer * n_heads + head) * size + query) * size;
          for (let i = 0; i < unscaled.length; i += 1) attention[row + i] = unscaled[i] / total;
        },
        // Chunks overwrite each other's: what stays is the last one's.
        afterLayer: (layer, n) => layerLogits.set(run.logits(n - 1, 1), layer * vocab_size),
      });
      return { attention, layerLogits, logits: run.logits(n - 1, 1).slice() };
    },
  };
}

export function readConfig(config) {
  if (config.model_type !== "llama" || config.hidden_act !== "silu" || config.rope_scaling) {
    throw new Error("The configuration is not that of a plain Llama model.");
  }
  if (!config.tie_word_embeddings) {
    throw new Error("The configuration has an output matrix of its own; expected tied weights.");
  }
  const arch = {
    n_layers: config.num_hidden_layers,
    d_model: config.hidden_size,
    n_heads: config.num_attention_heads,
    n_kv_heads: config.num_key_value_heads,
    head_dim: config.head_dim,
    d_ff: config.intermediate_size,
    vocab_size: config.vocab_size,
    max_context: config.max_position_embeddings,
    eos_id: config.eos_token_id,
    rope_theta: config.rope_theta,
    norm_eps: config.rms_norm_eps,
  };
  for (const name of ["d_model", "d_ff", "vocab_size"]) {
    if (arch[name] % 8) throw new Error(`${name} is ${arch[name]}; expected a multiple of 8.`);
  }
  if (arch.head_dim % 16) {
    throw new Error(`head_dim is ${arch.head_dim}; expected a multiple of 16.`);
  }
  const sizes = [...weightShapes(arch).values()].map((shape) => shape.reduce((a, b) => a * b));
  return { ...arch, n_params: sizes.reduce((a, b) => a + b) };
}

// Hugging Face's names of the tensors, to their shapes [out, in].
export function weightShapes(arch) {
  const { d_model: d, d_ff: f } = arch;
  const query = arch.n_heads * arch.head_dim;
  const key = arch.n_kv_heads * arch.head_dim;
  const shapes = new Map([["model.embed_tokens.weight", [arch.vocab_size, d]]]);
  for (let layer = 0; layer < arch.n_layers; layer += 1) {
    const add = (name, ...shape) => shapes.set(`model.layers.${layer}.${name}.weight`, shape);
    add("input_layernorm", d);
    add("self_attn.q_proj", query, d);
    add("self_attn.k_proj", key, d);
    add("self_attn.v_proj", key, d);
    add("self_attn.o_proj", d, query);
    add("post_attention_layernorm", d);
    add("mlp.gate_proj", f, d);
    add("mlp.up_proj", f, d);
    add("mlp.down_proj", d, f);
  }
  return shapes.set("model.norm.weight", [d]);
}

// The kernel with its memory, of which pieces are given out, and taken back when they are free.
export function openKernel() {
  if (!WebAssembly.validate(kernelBytes)) {
    throw new Error("This browser cannot run the model: it lacks the vector instructions (SIMD).");
  }
  const kernel = new WebAssembly.Instance(new WebAssembly.Module(kernelBytes)).exports;
  const free = new Map(); // size to addresses
  let end = 0;
  let floats = new Float32Array(kernel.memory.buffer);
  return {
    kernel,
    // All of the memory as numbers; another array after the memory has grown.
    get floats() {
      return floats;
    },
    take(bytes) {
      const size = Math.ceil(bytes / 64) * 64;
      const reused = free.get(size)?.pop();
      if (reused !== undefined) return reused;
      const at = end;
      end += size;
      const missing = end - kernel.memory.buffer.byteLength;
      if (missing > 0) {
        kernel.memory.grow(Math.ceil(missing / 65536));
        floats = new Float32Array(kernel.memory.buffer);
      }
      return at;
    },
    giveBack(at, bytes) {
      const size = Math.ceil(bytes / 64) * 64;
      free.set(size, [...(free.get(size) ?? []), at]);
    },
  };
}

// Copy a matrix to the kernel; return where it is.
export function loadMatrix(heap, buffer, { offset, length }) {
  const at = heap.take(length);
  new Uint8Array(heap.kernel.memory.buffer).set(new Uint8Array(buffer, offset, length), at);
  heap.kernel.interleave(at, at + length);
  return at;
}

// Copy the weights to the kernel; return where they are, by layer, the vectors of norms as f32.
export function loadWeights(heap, arch, buffer, tensors) {
  const matrix = (name) => loadMatrix(heap, buffer, tensors.get(name));
  const vector = (name) => {
    const { offset, length } = tensors.get(name);
    const halves = new Uint16Array(buffer.slice(offset, offset + length));
    return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  };
  const blocks = Array.from({ length: arch.n_layers }, (_, layer) => {
    const name = (part) => `model.layers.${layer}.${part}.weight`;
    return {
      attentionNorm: vector(name("input_layernorm")),
      q: matrix(name("self_attn.q_proj")),
      k: matrix(name("self_attn.k_proj")),
      v: matrix(name("self_attn.v_proj")),
      out: matrix(name("self_attn.o_proj")),
      mlpNorm: vector(name("post_attention_layernorm")),
      gate: matrix(name("mlp.gate_proj")),
      up: matrix(name("mlp.up_proj")),
      down: matrix(name("mlp.down_proj")),
    };
  });
  const name = "model.embed_tokens.weight"; // a draft may use the target's
  const embedding = tensors.has(name) ? matrix(name) : undefined;
  return { blocks, embedding, finalNorm: vector("model.norm.weight") };
}

// Keys and values of `capacity` tokens: for each layer and KV head the keys, in blocks of sixteen
// positions, [capacity/16, H, 16], as the kernel compares them, then the values, [capacity, H].
export function openCache(heap, arch, capacity) {
  const { n_layers, n_kv_heads, head_dim } = arch;
  const places = Math.ceil(capacity / BLOCK) * BLOCK;
  const headBytes = places * head_dim * 4;
  const tokenBytes = n_layers * n_kv_heads * 2 * head_dim * 4;
  const at = heap.take(places * tokenBytes);
  const atKeys = (layer, head) => at + (layer * n_kv_heads + head) * 2 * headBytes;
  return {
    length: 0,
    capacity,
    capacityBytes: capacity * tokenBytes,
    get bytes() {
      return this.length * tokenBytes;
    },
    atKeys,
    atValues: (layer, head) => atKeys(layer, head) + headBytes,
    truncate(length) {
      checkIndex("length", length, this.length + 1);
      this.length = length;
    },
    // After this the cache must not be used: its memory goes to the next one of its capacity.
    free: () => heap.giveBack(at, places * tokenBytes),
  };
}

export function openPass(heap, arch, weights) {
  const { d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, norm_eps } = arch;
  const { kernel } = heap;
  const group = n_heads / n_kv_heads;
  const half = head_dim / 2;
  const scale = Math.fround(1 / Math.sqrt(head_dim));
  const frequencies = ropeFrequencies(head_dim, arch.rope_theta);
  const room = (width) => heap.take(CHUNK * width * 4);
  const at = {
    x: room(d_model), // the residual stream
    h: room(d_model), // what a norm makes of it
    q: room(n_heads * head_dim),
    k: room(n_kv_heads * head_dim),
    v: room(n_kv_heads * head_dim),
    mixed: room(n_heads * head_dim),
    y: room(d_model), // what a sublayer adds to the stream
    gate: room(d_ff),
    up: room(d_ff),
    exps: room(d_ff),
    logits: room(vocab_size),
  };
  let attending = { at: 0, size: 0 }; // the weights of one query, as long as the cache in use

  // Take the tokens through all layers, a chunk at a time, and add them to the cache. Return how
  // many the last chunk had: its residual stream is what `logits` reads. `watch` may have
  // `silenced`, and functions that are called on the way.
  function pass(ids, cache, watch = {}) {
    checkCount("the number of ids", ids.length, 1);
    for (const id of ids) checkIndex("token ids", id, vocab_size);
    const enter = (from, n) => heap.floats.set(embeddings(ids.slice(from, from + n)), at.x / 4);
    return through(ids.length, enter, cache, watch);
  }

  // The same for whatever `enter(from, n)` writes to the residual stream in the tokens' place.
  function through(size, enter, cache, watch = {}) {
    if (cache.length + size > cache.capacity) {
      throw new Error(
        `The cache holds ${cache.length} of ${cache.capacity} tokens; ${size} more do not fit.`,
      );
    }
    makeRoomToAttend(cache.capacity);
    let n = 0;
    for (let from = 0; from < size; from += n) {
      n = Math.min(CHUNK, size - from);
      enter(from, n);
      chunk(n, cache, watch);
      watch.afterChunk?.(from, n);
    }
    return n;
  }

  function makeRoomToAttend(capacity) {
    const size = (capacity + BLOCK) * 4; // the kernel writes so far behind the last weight
    if (attending.size >= size) return;
    if (attending.size) heap.giveBack(attending.at, attending.size);
    attending = { at: heap.take(size), size };
  }

  function chunk(n, cache, watch) {
    const rotation = rotations(cache.length, n);
    weights.blocks.forEach((block, layer) => {
      norm(n, block.attentionNorm);
      kernel.product(at.h, n, block.q, d_model, n_heads * head_dim, at.q);
      kernel.product(at.h, n, block.k, d_model, n_kv_heads * head_dim, at.k);
      kernel.product(at.h, n, block.v, d_model, n_kv_heads * head_dim, at.v);
      rotate(at.q, n, n_heads, rotation, scale);
      rotate(at.k, n, n_kv_heads, rotation, 1);
      store(n, cache, layer);
      attend(n, cache, layer, watch.onAttention);
      silence(n, layer, watch.silenced);
      kernel.product(at.mixed, n, block.out, n_heads * head_dim, d_model, at.y);
      add(n);
      norm(n, block.mlpNorm);
      kernel.product(at.h, n, block.gate, d_model, d_ff, at.gate);
      kernel.product(at.h, n, block.up, d_model, d_ff, at.up);
      kernel.swiglu(at.gate, at.gate + n * d_ff * 4, at.up, at.exps);
      kernel.product(at.gate, n, block.down, d_ff, d_model, at.y);
      add(n);
      watch.afterLayer?.(layer, n);
    });
    cache.length += n;
  }

  function embeddings(ids) {
    const bits = new Uint32Array(ids.length * d_model);
    const halves = new Uint16Array(heap.floats.buffer, weights.embedding, vocab_size * d_model);
    ids.forEach((id, row) => {
      for (let i = 0; i < d_model; i += 1) {
        // As the kernel's `interleave` has put them: 0 4 1 5 2 6 3 7.
        const place = (i & ~7) + 2 * (i & 3) + ((i >> 2) & 1);
        bits[row * d_model + i] = halves[id * d_model + place] << 16;
      }
    });
    return new Float32Array(bits.buffer);
  }

  // h = x / root mean square of x · gain, row by row, from row `first` on.
  function norm(n, gain, first = 0) {
    const floats = heap.floats;
    for (let row = first; row < first + n; row += 1) {
      const x = at.x / 4 + row * d_model;
      const h = at.h / 4 + row * d_model;
      let sum = 0;
      for (let i = 0; i < d_model; i += 1) sum += floats[x + i] * floats[x + i];
      const factor = 1 / Math.sqrt(sum / d_model + norm_eps);
      for (let i = 0; i < d_model; i += 1) floats[h + i] = floats[x + i] * factor * gain[i];
    }
  }

  // cos and sin of the angles by which the pairs of n positions are turned. The angles are rounded
  // to f32 as in the library (and in training): at far positions the rounding shows.
  function rotations(start, n) {
    const cos = new Float32Array(n * half);
    const sin = new Float32Array(n * half);
    for (let row = 0; row < n; row += 1) {
      for (let pair = 0; pair < half; pair += 1) {
        const angle = Math.fround((start + row) * frequencies[pair]);
        cos[row * half + pair] = Math.cos(angle);
        sin[row * half + pair] = Math.sin(angle);
      }
    }
    return { cos, sin };
  }

  // Turn the pairs (i, i + H/2) of each head by the angles of its position, and scale them.
  function rotate(vectors, n, heads, { cos, sin }, factor) {
    const floats = heap.floats;
    for (let row = 0; row < n; row += 1) {
      for (let head = 0; head < heads; head += 1) {
        const start = vectors / 4 + (row * heads + head) * head_dim;
        for (let pair = 0; pair < half; pair += 1) {
          const a = floats[start + pair] * factor;
          const b = floats[start + pair + half] * factor;
          const c = cos[row * half + pair];
          const s = sin[row * half + pair];
          floats[start + pair] = a * c - b * s;
          floats[start + pair + half] = b * c + a * s;
        }
      }
    }
  }

  // Add the keys and values of n tokens to the cache.
  function store(n, cache, layer) {
    const floats = heap.floats;
    for (let row = 0; row < n; row += 1) {
      const position = cache.length + row;
      const block = Math.floor(position / BLOCK);
      for (let head = 0; head < n_kv_heads; head += 1) {
        const from = (row * n_kv_heads + head) * head_dim;
        const keys = cache.atKeys(layer, head) / 4 + block * head_dim * BLOCK + (position % BLOCK);
        const values = cache.atValues(layer, head) / 4 + position * head_dim;
        for (let i = 0; i < head_dim; i += 1) {
          floats[keys + i * BLOCK] = floats[at.k / 4 + from + i];
          floats[values + i] = floats[at.v / 4 + from + i];
        }
      }
    }
  }

  // Each query head reads the positions up to its own.
  function attend(n, cache, layer, onAttention) {
    for (let head = 0; head < n_heads; head += 1) {
      const shared = Math.floor(head / group);
      const keys = cache.atKeys(layer, shared);
      const values = cache.atValues(layer, shared);
      for (let row = 0; row < n; row += 1) {
        const offset = (row * n_heads + head) * head_dim * 4;
        const seen = cache.length + row + 1;
        const total = kernel.attend(
          at.q + offset,
          keys,
          values,
          seen,
          head_dim,
          attending.at,
          at.mixed + offset,
        );
        if (onAttention) {
          const first = attending.at / 4;
          const unscaled = heap.floats.subarray(first, first + seen);
          onAttention(layer, head, seen - 1, unscaled, total);
        }
      }
    }
  }

  function silence(n, layer, silenced = []) {
    for (const [, head] of silenced.filter(([where]) => where === layer)) {
      for (let row = 0; row < n; row += 1) {
        const start = at.mixed / 4 + (row * n_heads + head) * head_dim;
        heap.floats.fill(0, start, start + head_dim);
      }
    }
  }

  function add(n) {
    const floats = heap.floats;
    const [x, y] = [at.x / 4, at.y / 4];
    for (let i = 0; i < n * d_model; i += 1) floats[x + i] += floats[y + i];
  }

  // The features [n·D] of n rows of the last chunk, from `first` on: a view, good until the next.
  function features(first, n) {
    norm(n, weights.finalNorm, first);
    return new Float32Array(heap.floats.buffer, at.h + first * d_model * 4, n * d_model);
  }

  // Their logits [n·V], a view as well.
  const logits = (first, n) => logitsOf(features(first, n));

  function logitsOf(rows) {
    const n = rows.length / d_model;
    heap.floats.set(rows, at.h / 4);
    kernel.product(at.h, n, weights.embedding, d_model, vocab_size, at.logits);
    return new Float32Array(heap.floats.buffer, at.logits, n * vocab_size);
  }

  return { at, pass, through, features, logits, logitsOf, embeddings };
}

// How far one position turns each pair, in f32 throughout, as `rope.rope_frequencies`.
function ropeFrequencies(headDim, theta) {
  return Float32Array.from({ length: headDim / 2 }, (_, pair) => {
    return 1 / Math.fround(theta ** Math.fround((2 * pair) / headDim));
  });
}
