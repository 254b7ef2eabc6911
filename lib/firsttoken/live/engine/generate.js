// The token loops, as firsttoken.generate has them: with the same seed the same text.
import { checkCount, checkIds } from "./checks.js";
import { openDraft } from "./drafts.js";
import { openLastText, PIECE } from "./last_text.js";
import { createRandom } from "./random.js";
import { draw, largest, nextTokenDistribution, samplingParams, softmax } from "./sampling.js";
import { verify } from "./speculative.js";

// Continue a text token by token: {ids, params, max_tokens, use_cache, top}, resolves to
// {finish_reason, ids, text, seconds}. Each token is told as {id, piece, text, ids_length, step_ms,
// at_ms, n_cached, cache_bytes, cache_capacity_bytes, top}; `text` is what is certain by now, `top`
// as `next` gives it. With use_cache false every step reads the whole text again, with true the
// first one does; where nothing is said, what was read before the request counts, too.
export async function write({ tokenizer, models, lastText }, asked, job) {
  const { use_cache, top = 10 } = asked;
  const model = models.target;
  const request = continuation(model, tokenizer, asked);
  const own = use_cache === undefined ? null : openLastText(model, request.maxLength);
  const text = own ?? lastText();
  try {
    while (!request.finishReason && !job.stopped) {
      const startMs = performance.now();
      if (use_cache === false) own.forget();
      const logits = await text.read(request.ids, job);
      if (!logits) break; // stopped
      const cache = use_cache === false ? null : text.cache;
      const kept = request.distribution(logits);
      const token = request.append(draw(kept, request.rng));
      job.tell({
        ...token,
        ids_length: request.ids.length,
        step_ms: performance.now() - startMs,
        at_ms: request.elapsedMs(),
        n_cached: cache?.length ?? 0,
        cache_bytes: cache?.bytes ?? 0,
        cache_capacity_bytes: cache?.capacityBytes ?? 0,
        top: likeliest(tokenizer, softmax(logits), kept, top),
      });
      await job.turn();
    }
    return request.result();
  } finally {
    own?.cache.free();
  }
}

// Continue a text by rounds, a draft guessing and the target checking: {ids, params, draft, gamma,
// max_tokens}, resolves as `write`, and to rounds [{drafted, accepted}]. `draft` is a name in
// drafts.js. Each round is told as {tokens, rejected, wanted, drafted, accepted, draft_ms, check_ms,
// at_ms}: so many guesses were wanted, made and kept. A token's `kind` is "kept", "replaced" (the first
// that was rejected) or "bonus". Counts are those of the rule: they include what was accepted behind
// the end of the text.
export async function speculate({ tokenizer, models }, asked, job) {
  const { target } = models;
  const { draft: name = "draft", gamma = 4 } = asked;
  checkCount("gamma", gamma);
  const request = continuation(target, tokenizer, asked);
  const draft = openDraft(name, models, request);
  const cache = target.newCache(request.maxLength);
  const rounds = [];
  try {
    // A long text is read in pieces, between which others have their turn, and Stop is heard; but who
    // observes the target wants all of it at once.
    while (!draft.observe && cache.length + PIECE < request.ids.length && !job.stopped) {
      target.features(request.ids.slice(cache.length, cache.length + PIECE), cache);
      await job.turn();
    }
    while (!request.finishReason && !job.stopped) {
      const round = speculativeRound(target, cache, draft, request, gamma);
      const { drafted, accepted } = round;
      rounds.push({ drafted, accepted });
      job.tell({
        ...round,
        rejected: round.rejected.map(tokenizer.named),
        at_ms: request.elapsedMs(),
      });
      await job.turn();
    }
    return { ...request.result(), rounds };
  } finally {
    cache.free();
    draft.free();
  }
}

function speculativeRound(target, cache, draft, request, gamma) {
  const startMs = performance.now();
  // One token per round is the target's own, so that the last needs no draft.
  const wanted = Math.min(gamma, request.maxLength - request.ids.length - 1);
  const { drafted, guesses } = draft.propose(wanted);
  const draftedMs = performance.now();
  const unread = request.ids.slice(cache.length);
  const features = target.features([...unread, ...drafted], cache);
  const distributions = lastRows(target, features, drafted.length + 1).map((logits, i) =>
    request.distribution(logits, drafted.slice(0, i)),
  );
  const tokens = verify(distributions, guesses, drafted, request.rng);
  const checkedMs = performance.now();
  const accepted = tokens.length - 1;
  draft.observe?.(features.subarray(0, (unread.length + accepted) * target.arch.d_model));
  const last = accepted < drafted.length ? "replaced" : "bonus";
  const appended = [];
  for (const [i, id] of tokens.entries()) {
    appended.push({ ...request.append(id), kind: i < accepted ? "kept" : last });
    if (request.finishReason) break;
  }
  // The last token is read with the next guesses; what was rejected is forgotten.
  cache.truncate(request.ids.length - 1);
  return {
    tokens: appended,
    rejected: drafted.slice(accepted),
    wanted,
    drafted: drafted.length,
    accepted,
    draft_ms: draftedMs - startMs,
    check_ms: checkedMs - draftedMs,
  };
}

// The logits that the last n features stand for, row by row.
function lastRows(target, features, n) {
  const { d_model, vocab_size } = target.arch;
  const logits = target.logitsOf(features.subarray(-n * d_model));
  return Array.from({ length: n }, (_, i) => logits.subarray(i * vocab_size, (i + 1) * vocab_size));
}

// One request on its way: its text, its random numbers, its clock, and what ends it.
function continuation(model, tokenizer, { ids, params, max_tokens = 16 }) {
  const settings = samplingParams(params);
  const { end_ids, max_context } = model.arch;
  checkIds(ids, model.arch);
  checkCount("max_tokens", max_tokens, 1);
  if (ids.length === max_context) {
    throw new Error(
      `ids hold ${ids.length} tokens, expected fewer than the context of ${max_context}`,
    );
  }
  const startMs = performance.now();
  const text = [...ids];
  const stream = tokenizer.stream();
  const request = {
    ids: text,
    isEnd: (id) => end_ids.includes(id),
    greedy: settings.temperature === 0,
    maxLength: Math.min(text.length + max_tokens, max_context),
    finishReason: null,
    rng: createRandom(settings.seed),
    // `drafted` tokens stand behind the text, of which they are not yet a part.
    distribution: (logits, drafted = []) =>
      nextTokenDistribution(logits, settings, [...text, ...drafted]),
    append(id) {
      text.push(id);
      const n = text.length - ids.length;
      if (request.isEnd(id)) request.finishReason = "eos";
      else if (n === max_tokens) request.finishReason = "length";
      else if (text.length === max_context) request.finishReason = "context";
      return { ...tokenizer.named(id), text: stream.push(id) };
    },
    elapsedMs: () => performance.now() - startMs,
    result() {
      const chosen = text.slice(ids.length);
      return {
        finish_reason: request.finishReason ?? "stopped",
        ids: chosen,
        text: tokenizer.decode(chosen),
        seconds: request.elapsedMs() / 1000,
      };
    },
  };
  return request;
}

// The n likeliest tokens, [{id, piece, p, kept}]: p as the model says, kept after all settings.
export function likeliest(tokenizer, p, kept, n) {
  return largest(p, n).map((id) => ({ ...tokenizer.named(id), p: p[id], kept: kept[id] }));
}
