// Which drafted tokens stay, as firsttoken.speculative decides it.
import { draw } from "./sampling.js";

// Return what one pass of the target makes of the drafted tokens: 1 … γ+1 tokens. They are kept up
// to the first that the rule rejects, which is replaced; if all are kept, there is one more.
// target: γ+1 distributions, draft: γ; row i is that of tokens[i], given the tokens before it. At
// temperature 0 each has one token only: a guess is kept if it is the target's own choice.
// Source: Leviathan et al. 2023, arXiv:2211.17192, algorithm 1
export function verify(target, draft, tokens, rng) {
  const numbers = tokens.map(() => rng.random());
  for (const [i, token] of tokens.entries()) {
    const accept = Math.min(target[i][token], draft[i][token]) / draft[i][token];
    if (!(numbers[i] < accept)) {
      return [...tokens.slice(0, i), draw(residual(target[i], draft[i]), rng)];
    }
  }
  return [...tokens, draw(target[tokens.length], rng)];
}

// What replaces a rejected token: the mass that the draft under-supplies, not yet divided by its
// sum. There is none where only rounding sets the two apart; then it is the target.
function residual(target, draft) {
  const excess = new Float64Array(target.length);
  let missing = 0;
  for (let id = 0; id < target.length; id += 1) {
    excess[id] = target[id] - Math.min(target[id], draft[id]);
    missing += excess[id];
  }
  return missing > 0 ? excess : target;
}
