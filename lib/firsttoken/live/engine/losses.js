// How well the target predicts a text, as firsttoken.models.evaluation measures it.

const CHUNK = 64; // tokens read between two turns of others

// Bits per token of {text}, read after the end-of-text token in windows that overlap by half:
// {ids, pieces, bits, n_bytes, bits_per_byte}. Tells [done, total] tokens on the way.
export async function losses({ tokenizer, models }, { text }, job) {
  const { target } = models;
  const ids = tokenizer.encode(text);
  if (ids.length === 0) throw new Error("text must hold at least one token, got none");
  const bits = new Float64Array(ids.length);
  let done = 0;
  for await (const [first, rows] of predictions(target, ids, job)) {
    for (const [row, logits] of rows.entries()) {
      if (first + row < done) continue; // it was predicted in the window before
      bits[done] = surprise(logits, ids[done]);
      done += 1;
    }
    job.tell([done, ids.length]);
  }
  const nBytes = new TextEncoder().encode(text).length;
  return {
    ids,
    pieces: ids.map((id) => tokenizer.named(id).piece),
    bits,
    n_bytes: nBytes,
    bits_per_byte: bits.reduce((a, b) => a + b) / nBytes,
  };
}

// Yield [position, logits of the tokens from there on], a chunk at a time.
async function* predictions(target, ids, job) {
  const inputs = [target.arch.eos_id, ...ids.slice(0, -1)];
  const size = target.arch.vocab_size;
  const window = Math.min(target.arch.max_context, inputs.length);
  const cache = target.newCache(window);
  try {
    for (const start of windowStarts(inputs.length, window)) {
      cache.truncate(0);
      while (cache.length < window) {
        const first = start + cache.length;
        const chunk = inputs.slice(first, Math.min(first + CHUNK, start + window));
        const logits = target.forward(chunk, cache);
        const rows = Array.from(chunk, (_, row) => logits.subarray(row * size, (row + 1) * size));
        yield [first, rows];
        await job.turn();
        if (job.stopped) throw new Error("stopped");
      }
    }
  } finally {
    cache.free();
  }
}

// The last window is pulled back, so that all are full.
function windowStarts(n, window) {
  const starts = [];
  for (let start = 0; start < n - window; start += Math.max(1, Math.floor(window / 2))) {
    starts.push(start);
  }
  return [...starts, n - window];
}

// -log2 of the token's probability.
function surprise(logits, id) {
  const top = logits.reduce((a, b) => Math.max(a, b));
  const total = logits.reduce((sum, x) => sum + Math.exp(x - top), 0);
  return (Math.log(total) + top - logits[id]) / Math.LN2;
}
