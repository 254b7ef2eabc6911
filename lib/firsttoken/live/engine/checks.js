// Checks of what the page asks: errors name what came and what was expected.

export function checkCount(name, value, atLeast = 0) {
  if (!Number.isSafeInteger(value) || value < atLeast) {
    throw new Error(`${name} must be an integer of at least ${atLeast}, got ${value}`);
  }
}

export function checkIndex(name, value, size) {
  if (!Number.isInteger(value) || value < 0 || value >= size) {
    throw new Error(`${name} must lie in 0 … ${size - 1}, got ${value}`);
  }
}

// A text of at least one token that the model can read at once.
export function checkIds(ids, { vocab_size, max_context }) {
  if (ids.length === 0) throw new Error("ids must hold at least one id, got none");
  if (ids.length > max_context) {
    throw new Error(
      `ids hold ${ids.length} tokens, expected at most the context of ${max_context}`,
    );
  }
  for (const id of ids) checkIndex("token ids", id, vocab_size);
}
