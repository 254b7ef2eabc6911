// A draft without a model: firsttoken.drafts.SuffixAutomaton. A state stands for all parts of the text
// that end at the same places; its link leads to the longest ending of theirs that also ends elsewhere.
// Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"

export function createSuffixAutomaton() {
  const text = [];
  const empty = { follow: new Map(), link: undefined, length: 0, firstEnd: 0 };
  let whole = empty; // the state of the whole text

  // The state of what `state` stands for and then `token`, and of nothing longer.
  function exactly(state, token) {
    const next = state.follow.get(token);
    if (next.length === state.length + 1) return next;
    // The longer parts do not end here: the shorter ones get a state of their own.
    const own = { ...next, follow: new Map(next.follow), length: state.length + 1 };
    next.link = own;
    for (let s = state; s?.follow.get(token) === next; s = s.link) s.follow.set(token, own);
    return own;
  }

  return {
    // How long the text's longest ending is that stands earlier.
    get nMatched() {
      return whole.link?.length ?? 0;
    },
    extend(token) {
      text.push(token);
      const { length } = text;
      const added = { follow: new Map(), link: empty, length, firstEnd: length };
      let state = whole;
      for (; state && !state.follow.has(token); state = state.link) state.follow.set(token, added);
      if (state) added.link = exactly(state, token);
      whole = added;
    },
    // Up to n tokens: what followed that ending the first time.
    propose(n) {
      if (this.nMatched === 0) return [];
      return text.slice(whole.link.firstEnd, whole.link.firstEnd + n);
    },
  };
}
