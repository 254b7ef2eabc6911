// What guesses for the target, in one request: propose(n) gives {drafted, guesses}, up to n tokens and
// for each the distribution that it was drawn from. What has observe(features) wants to see, after
// each pass, the target's features [n·D] of the tokens that it has read, and that stayed.
import { argmax, draw, drawFirst } from "./sampling.js";
import { createSuffixAutomaton } from "./suffix.js";

const MIN_MATCH = 2; // tokens: a shorter ending says little about what follows

const KINDS = {
  draft: fromModel("draft"),
  pruned_draft: fromModel("pruned_draft"),
  suffix_automaton: fromSuffixes,
  medusa_heads: fromHeads,
  eagle_draft: fromFeatures,
};

export function openDraft(name, models, request) {
  if (!KINDS[name]) {
    throw new Error(`draft must be one of ${Object.keys(KINDS).join(", ")}, got ${name}`);
  }
  if (!models[name] && name !== "suffix_automaton") {
    throw new Error(`${name} is not loaded: \`need\` it first`);
  }
  return KINDS[name](models, request);
}

// A smaller model, token by token.
function fromModel(name) {
  return ({ [name]: model }, request) => {
    const cache = model.newCache(request.maxLength);
    return {
      propose(n) {
        // What was rejected of the last proposal is forgotten.
        cache.truncate(Math.min(cache.length, request.ids.length - 1));
        const logitsAfter = (drafted) =>
          model.lastLogits([...request.ids, ...drafted].slice(cache.length), cache);
        return chain(request, n, logitsAfter, draw);
      },
      free: cache.free,
    };
  };
}

// What followed where the text's ending stood before. Nothing is known of the guesses but that they
// were certain.
function fromSuffixes({ target }, request) {
  const automaton = createSuffixAutomaton();
  let nRead = 0;
  const certain = (id) => {
    const distribution = new Float32Array(target.arch.vocab_size);
    distribution[id] = 1;
    return distribution;
  };
  return {
    propose(n) {
      for (; nRead < request.ids.length; nRead += 1) automaton.extend(request.ids[nRead]);
      const found = automaton.nMatched >= MIN_MATCH ? automaton.propose(n) : [];
      const end = found.findIndex(request.isEnd);
      const drafted = end < 0 ? found : found.slice(0, end + 1);
      return { drafted, guesses: drafted.map(certain) };
    },
    free: () => {},
  };
}

// Medusa: all guesses from the target's last feature.
function fromHeads({ target, medusa_heads: heads }, request) {
  let last;
  return {
    observe: (features) => (last = features.slice(-heads.arch.d_model)),
    propose(n) {
      if (!last) return { drafted: [], guesses: [] };
      const logits = target.logitsOf(heads.moved(last));
      const { vocab_size } = target.arch;
      const logitsAfter = ({ length }) =>
        logits.subarray(length * vocab_size, (length + 1) * vocab_size);
      return chain(request, Math.min(n, heads.arch.n_heads), logitsAfter, drawFirst);
    },
    free: () => {},
  };
}

// EAGLE: the target's features, and behind the text its own.
function fromFeatures({ target, eagle_draft: layer }, request) {
  const cache = layer.newCache(request.maxLength);
  let unread; // features
  let nRead = 0;
  return {
    observe: (features) => (unread = features),
    propose(n) {
      if (!unread) return { drafted: [], guesses: [] };
      cache.truncate(nRead); // what it read behind the last text is forgotten
      const follow = target.embeddings(request.ids.slice(nRead + 1));
      let said = layer.next(unread, follow, cache);
      nRead = cache.length;
      const logitsAfter = (drafted) => {
        if (drafted.length) said = layer.next(said, target.embeddings(drafted.slice(-1)), cache);
        return target.logitsOf(said);
      };
      return chain(request, n, logitsAfter, drawFirst);
    },
    free: cache.free,
  };
}

// Guess one token after another, not beyond the end of the text.
function chain(request, n, logitsAfter, choose) {
  const drafted = [];
  const guesses = [];
  while (drafted.length < n && !request.isEnd(drafted.at(-1))) {
    const guess = request.distribution(logitsAfter(drafted), drafted);
    guesses.push(guess);
    drafted.push(request.greedy ? argmax(guess) : choose(guess, request.rng));
  }
  return { drafted, guesses };
}
