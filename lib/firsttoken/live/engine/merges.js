// Byte-pair encoding: which neighbours become one token.

// Give what merges the ids of a word, in place. `pairs` are the names of two tokens each, in the
// order in which they were learned. Of all neighbours that are a pair the one learned first is
// merged, of equal ones the leftmost, again and again until there is none.
export function createMerges(pairs, idOf) {
  const ranks = new Map();
  const key = (left, right) => left * idOf.size + right;
  const merged = pairs.map((pair, rank) => {
    const [left, right, both] = [pair[0], pair[1], pair.join("")].map((name) => idOf.get(name));
    if (pair.length !== 2 || [left, right, both].includes(undefined)) {
      throw new Error(`merge ${rank} is ${pair.join(" ")}, expected two tokens that make a third`);
    }
    ranks.set(key(left, right), rank);
    return both;
  });
  const rankOf = (left, right) => ranks.get(key(left, right)) ?? Infinity;

  return (ids) => {
    const ranked = ids.map((id, i) => rankOf(id, ids[i + 1]));
    for (;;) {
      let first = Infinity;
      for (const rank of ranked) first = Math.min(first, rank);
      if (first === Infinity) return ids;
      // One walk along the word merges all occurrences of the pair, and closes the gaps.
      let n = 0;
      for (let i = 0; i < ids.length; i += 1) {
        if (ranked[i] !== first) {
          ids[n] = ids[i];
          ranked[n++] = ranked[i];
          continue;
        }
        i += 1;
        ids[n] = merged[first];
        ranked[n] = rankOf(ids[n], ids[i + 1]);
        if (n > 0) ranked[n - 1] = rankOf(ids[n - 1], ids[n]);
        // A pair that has just come about may have been learned earlier: then it is its turn.
        if (Math.min(ranked[n], ranked[n - 1] ?? Infinity) < first) first = -1;
        n += 1;
      }
      ids.length = ranked.length = n;
    }
  };
}
