// What rounds of speculation come to, as firsttoken.speculative counts it. A round is what the
// engine tells of it: tokens, wanted, drafted, accepted, draft_ms, check_ms.

// Tokens per pass on average, 1 + α + … + α^γ in closed form (firsttoken.speculative).
export function expectedTokens(alpha, gamma) {
  return alpha === 1 ? gamma + 1 : (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

// The same for rounds of unlike length, each with as many guesses as it had.
export function expectedOver(rounds, alpha) {
  return mean(rounds.map(({ drafted }) => expectedTokens(alpha, drafted)));
}

// How many times as fast as plain decoding: tokens and guesses of a round, and the costs of a guess
// and of a check in steps of the target.
export function speedup(tokens, guesses, draft_cost, check_cost) {
  return tokens / (check_cost + guesses * draft_cost);
}

// α is the share of accepted guesses among those that were looked at: in a round with a rejection
// these are the accepted ones and one more.
export function counted(rounds) {
  let [accepted, looked_at, tokens] = [0, 0, 0];
  for (const round of rounds) {
    accepted += round.accepted;
    looked_at += Math.min(round.accepted + 1, round.drafted);
    tokens += round.accepted + 1;
  }
  const alpha = looked_at ? accepted / looked_at : undefined;
  return { accepted, looked_at, alpha, tokens, per_pass: tokens / rounds.length };
}

// Where the model's time goes in a typical round, in milliseconds, and tokens per second of that
// time: passing them on and drawing them is left out. The first round, which also reads the prompt,
// does not count.
export function roundTimes(rounds) {
  const later = rounds.slice(1);
  if (!later.length) return undefined;
  const draft_ms = typicalOf(later, "draft_ms");
  const check_ms = typicalOf(later, "check_ms");
  const n_tokens = mean(later.map((round) => round.tokens.length));
  return { draft_ms, check_ms, per_second: (1000 * n_tokens) / (draft_ms + check_ms) };
}

// Rounds against plain decoding (steps: the milliseconds that each token took the model). Both count
// the same kind of time; costs are in steps of plain decoding, `guesses` those of a round on average.
// Rounds without room for γ guesses, at the end of the text, do not count.
export function compared(rounds, gamma, { steps }) {
  const whole = rounds.slice(1).filter(({ wanted }) => wanted === gamma);
  const guesses = whole.length ? mean(whole.map(({ drafted }) => drafted)) : 0;
  if (!guesses || steps.length < 2) return undefined;
  const tokens = expectedOver(whole, counted(rounds).alpha);
  const step_ms = typical(steps.slice(1));
  const draft_cost = typicalOf(whole, "draft_ms") / guesses / step_ms;
  const check_cost = typicalOf(whole, "check_ms") / step_ms;
  const plain_per_second = 1000 / step_ms;
  return {
    step_ms,
    plain_per_second,
    tokens,
    guesses,
    draft_cost,
    check_cost,
    measured: roundTimes(rounds).per_second / plain_per_second,
    predicted: speedup(tokens, guesses, draft_cost, check_cost),
    with_free_check: speedup(tokens, guesses, draft_cost, 1),
  };
}

function mean(list) {
  return list.reduce((a, b) => a + b, 0) / list.length;
}

// What a round takes: rounds of as many guesses are alike, and each such kind has its typical time.
function typicalOf(rounds, name) {
  const kinds = new Set(rounds.map(({ drafted }) => drafted));
  const sums = [...kinds].map((n) => {
    const alike = rounds.filter(({ drafted }) => drafted === n);
    return alike.length * typical(alike.map((round) => round[name]));
  });
  return sums.reduce((a, b) => a + b) / rounds.length;
}

// The mean of the middle half: what else the machine did is left out, and a page's clock, which
// ticks in tenths of a millisecond, is averaged.
function typical(list) {
  const quarter = Math.floor(list.length / 4);
  return mean(list.toSorted((a, b) => a - b).slice(quarter, list.length - quarter));
}
