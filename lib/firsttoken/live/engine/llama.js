// The Llama model of lib/firsttoken/models/llama.py in the page: token ids in, logits out. Products are in
// matrix.js, attention and the gate in kernel.wat; the rest is here.
//
// Letters as in the book: T new tokens, D width, N heads, K KV heads, H their size, F width of the
// MLP, V vocabulary, L layers. What starts with "at" is an address in the kernel's memory.
import { openCache, BLOCK } from "./cache.js";
import { checkCount, checkIndex } from "./checks.js";

const CHUNK = 32; // so many tokens go through the layers together, in memory taken once

// A model from its parts: {heap, matrices, arch, weights}. `arch.pairs` says which numbers of a head
// are turned together, "halves" (half a head apart) or "neighbours"; `arch.unrotated` the layers
// where none are; `arch.scales` are Granite's factors. Biases and norms of queries and keys may be missing.
export function openModel({ heap, matrices, arch, weights }) {
  const run = openPass(heap, matrices, arch, weights);
  // A pass that keeps nothing has a cache for as long as it takes.
  const withCache = (cache, task) => {
    if (cache) return task(cache);
    const own = openCache(heap, arch, arch.max_context);
    try {
      return task(own);
    } finally {
      own.free();
    }
  };

  return {
    arch,
    get memoryBytes() {
      return heap.kernel.memory.buffer.byteLength;
    },
    newCache: (capacity = arch.max_context) => openCache(heap, arch, capacity),
    round: matrices.round,

    // The logits [T·V] that follow each of the tokens; with a cache they continue what it holds.
    forward(ids, cache = null) {
      const logits = new Float32Array(ids.length * arch.vocab_size);
      const afterChunk = (from, n) => logits.set(run.logits(0, n), from * arch.vocab_size);
      withCache(cache, (kept) => run.pass(ids, kept, { afterChunk }));
      return logits;
    },

    // The logits [V] after the last token. The [layer, head] in `silenced` add nothing to their
    // layer's output.
    lastLogits(ids, cache = null, silenced = []) {
      const n = withCache(cache, (kept) => run.pass(ids, kept, { silenced }));
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

    // What follows the ids if one head is silent, as a function of its layer and number: logits [V].
    // Up to its layer all is as if it were not, and computed once for all heads.
    withoutHead(ids) {
      const { n_layers, d_model } = arch;
      const room = () => new Float32Array(ids.length * d_model);
      const before = Array.from({ length: n_layers }, room);
      const beforeLayer = (layer, from, n) => before[layer].set(run.stream(n), from * d_model);
      withCache(null, (cache) => run.pass(ids, cache, { beforeLayer }));
      return (layer, head) => {
        const enter = (from, n) =>
          run.stream(n).set(before[layer].subarray(from * d_model, (from + n) * d_model));
        const watch = { silenced: [[layer, head]], firstLayer: layer };
        const n = withCache(null, (cache) => run.through(ids.length, enter, cache, watch));
        return run.logits(n - 1, 1).slice();
      };
    },

    // A look into one pass without a cache: who looked where, and what each layer would have said
    // of the next token.
    inside(ids, silenced = []) {
      const { n_layers, n_heads, vocab_size } = arch;
      const size = ids.length;
      const attention = new Float32Array(n_layers * n_heads * size * size);
      const layerLogits = new Float32Array(n_layers * vocab_size);
      const watch = {
        silenced,
        onAttention(layer, head, query, unscaled, total) {
          const row = ((layer * n_heads + head) * size + query) * size;
          for (let i = 0; i < unscaled.length; i += 1) attention[row + i] = unscaled[i] / total;
        },
        // Chunks overwrite each other's: what stays is the last one's.
        afterLayer: (layer, n) => layerLogits.set(run.logits(n - 1, 1), layer * vocab_size),
      };
      const n = withCache(null, (cache) => run.pass(ids, cache, watch));
      return { attention, layerLogits, logits: run.logits(n - 1, 1).slice() };
    },
  };
}

export function openPass(heap, matrices, arch, weights) {
  const { d_model, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, norm_eps, scales } = arch;
  const { kernel } = heap;
  const { multiply } = matrices;
  const group = n_heads / n_kv_heads;
  const half = head_dim / 2;
  const scale = Math.fround(scales.attention);
  // Of a head's numbers, pair i is turned: i and i + H/2, or 2i and 2i + 1.
  const [stride, apart] = arch.pairs === "neighbours" ? [2, 1] : [1, half];
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
    const enter = (from, n) => enterTokens(ids.slice(from, from + n));
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
      chunk(n, cache, { ...watch, from });
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
    const still = { cos: new Float32Array(n * half).fill(1), sin: new Float32Array(n * half) };
    weights.blocks.forEach((block, layer) => {
      if (layer < (watch.firstLayer ?? 0)) return;
      watch.beforeLayer?.(layer, watch.from, n);
      norm(n, block.attentionNorm);
      multiply(at.h, n, block.q, at.q);
      multiply(at.h, n, block.k, at.k);
      multiply(at.h, n, block.v, at.v);
      addBias(at.q, n, block.qBias);
      addBias(at.k, n, block.kBias);
      addBias(at.v, n, block.vBias);
      normRows(at.q, at.q, n * n_heads, block.qNorm);
      normRows(at.k, at.k, n * n_kv_heads, block.kNorm);
      const turned = arch.unrotated.includes(layer) ? still : rotation;
      rotate(at.q, n, n_heads, turned, scale);
      rotate(at.k, n, n_kv_heads, turned, 1);
      store(n, cache, layer);
      attend(n, cache, layer, watch.onAttention);
      silence(n, layer, watch.silenced);
      multiply(at.mixed, n, block.out, at.y);
      add(n);
      norm(n, block.mlpNorm);
      multiply(at.h, n, block.gate, at.gate);
      multiply(at.h, n, block.up, at.up);
      kernel.swiglu(at.gate, at.gate + n * d_ff * 4, at.up, at.exps);
      multiply(at.gate, n, block.down, at.y);
      add(n);
      watch.afterLayer?.(layer, n);
    });
    cache.length += n;
  }

  function enterTokens(ids) {
    ids.forEach((id, row) => matrices.row(weights.embedding, id, at.x + row * d_model * 4));
    if (scales.embedding === 1) return;
    const [floats, x] = [heap.floats, at.x / 4];
    for (let i = 0; i < ids.length * d_model; i += 1) floats[x + i] *= scales.embedding;
  }

  function embeddings(ids) {
    const vectors = new Float32Array(ids.length * d_model);
    for (let from = 0; from < ids.length; from += CHUNK) {
      const some = ids.slice(from, from + CHUNK);
      enterTokens(some);
      vectors.set(stream(some.length), from * d_model);
    }
    return vectors;
  }

  // h = x / root mean square of x · gain, row by row, from row `first` on.
  function norm(n, gain, first = 0) {
    const skipped = first * d_model * 4;
    normRows(at.x + skipped, at.h + skipped, n, gain);
  }

  // The same for rows that are as long as the gain; without one they stay as they are.
  function normRows(from, to, n, gain) {
    if (!gain) return;
    const floats = heap.floats;
    const width = gain.length;
    for (let row = 0; row < n; row += 1) {
      const x = from / 4 + row * width;
      const y = to / 4 + row * width;
      let sum = 0;
      for (let i = 0; i < width; i += 1) sum += floats[x + i] * floats[x + i];
      const factor = 1 / Math.sqrt(sum / width + norm_eps);
      for (let i = 0; i < width; i += 1) floats[y + i] = floats[x + i] * factor * gain[i];
    }
  }

  function addBias(to, n, bias) {
    if (!bias) return;
    const floats = heap.floats;
    for (let row = 0; row < n; row += 1) {
      const y = to / 4 + row * bias.length;
      for (let i = 0; i < bias.length; i += 1) floats[y + i] += bias[i];
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

  // Turn the pairs of each head by the angles of its position, and scale them.
  function rotate(vectors, n, heads, { cos, sin }, factor) {
    const floats = heap.floats;
    for (let row = 0; row < n; row += 1) {
      for (let head = 0; head < heads; head += 1) {
        const start = vectors / 4 + (row * heads + head) * head_dim;
        for (let pair = 0; pair < half; pair += 1) {
          const one = start + pair * stride;
          const other = one + apart;
          const a = floats[one] * factor;
          const b = floats[other] * factor;
          const c = cos[row * half + pair];
          const s = sin[row * half + pair];
          floats[one] = a * c - b * s;
          floats[other] = b * c + a * s;
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
    const [x, y, factor] = [at.x / 4, at.y / 4, scales.residual];
    for (let i = 0; i < n * d_model; i += 1) floats[x + i] += floats[y + i] * factor;
  }

  // The residual stream [n·D] of the first n rows of a chunk: a view, good until the memory grows.
  function stream(n) {
    return new Float32Array(heap.floats.buffer, at.x, n * d_model);
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
    multiply(at.h, n, weights.unembedding, at.logits);
    const logits = new Float32Array(heap.floats.buffer, at.logits, n * vocab_size);
    if (scales.logits !== 1) for (let i = 0; i < logits.length; i += 1) logits[i] *= scales.logits;
    return logits;
  }

  return { at, pass, through, stream, features, logits, logitsOf, embeddings };
}

// How far one position turns each pair, in f32 throughout, as `rope.rope_frequencies`.
function ropeFrequencies(headDim, theta) {
  return Float32Array.from({ length: headDim / 2 }, (_, pair) => {
    return 1 / Math.fround(theta ** Math.fround((2 * pair) / headDim));
  });
}
