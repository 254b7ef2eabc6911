// The text that a model read last, as firsttoken.live.last_text keeps it: of the next one only what is
// new goes through the model.

export const PIECE = 32; // tokens in one pass: then others have their turn

export function openLastText(model, capacity = model.arch.max_context) {
  const cache = model.newCache(capacity);
  let known = []; // the tokens that the cache holds
  let logits; // after the last of them
  let before = Promise.resolve(); // the reading that goes on

  // How many tokens at the beginning of a text need not be read again. The last one is, as what
  // follows it is asked for.
  function nKnown(ids) {
    if (logits && ids.length === known.length && ids.every((id, i) => id === known[i])) {
      return ids.length;
    }
    const most = Math.min(ids.length - 1, known.length);
    let n = 0;
    while (n < most && ids[n] === known[n]) n += 1;
    return n;
  }

  async function readAll(ids, job) {
    let n;
    while ((n = nKnown(ids)) < ids.length) {
      if (job.stopped) return undefined;
      const piece = ids.slice(n, n + PIECE);
      cache.truncate(n);
      known = ids.slice(0, n);
      logits = undefined;
      if (n + piece.length === ids.length) logits = model.lastLogits(piece, cache);
      else model.features(piece, cache);
      known = ids.slice(0, n + piece.length);
      if (!logits) await job.turn();
    }
    return logits;
  }

  return {
    cache,
    nKnown,
    forget() {
      known = [];
      logits = undefined;
    },

    // The logits [V] after the last of some ids; nothing, if `job` was stopped on the way. Who asks
    // meanwhile waits until this text is read: two that took turns would undo each other's.
    read(ids, job) {
      const answer = before.then(() => readAll(ids, job));
      before = answer.catch(() => {});
      return answer;
    },
  };
}
