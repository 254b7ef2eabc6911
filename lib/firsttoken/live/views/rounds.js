// What rounds of speculation come to, as firsttoken.speculative counts it. A round is what the
// engine tells of it: drafted, accepted, draft_ms, check_ms, at_ms.

// Tokens per pass on average, 1 + α + … + α^γ in closed form (firsttoken.speculative).
export function expectedTokens(alpha, gamma) {
  return alpha === 1 ? gamma + 1 : (1 - alpha ** (gamma + 1)) / (1 - alpha);
}

// How many times as fast as plain decoding: a draft's step and a check in steps of the target.
export function speedup(alpha, gamma, draft_cost, check_cost) {
  return expectedTokens(alpha, gamma) / (check_cost + gamma * draft_cost);
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

// Where the time of a round goes on average, in milliseconds, and tokens per second. It counts from
// the first round on, which also takes reading the prompt.
export function roundTimes(rounds) {
  const later = rounds.slice(1);
  if (!later.length) return undefined;
  const total_ms = rounds.at(-1).at_ms - rounds[0].at_ms;
  const n_tokens = later.reduce((n, round) => n + round.tokens.length, 0);
  const draft_ms = mean(later.map((round) => round.draft_ms));
  const check_ms = mean(later.map((round) => round.check_ms));
  const rest_ms = Math.max(0, total_ms / later.length - draft_ms - check_ms);
  return { draft_ms, check_ms, rest_ms, per_second: (1000 * n_tokens) / total_ms };
}

// Rounds against plain decoding ({steps, at}: the time each token took, and when it came). Costs are
// in steps of plain decoding, those of typical passes: what else a round takes is in no term of the
// formula.
export function compared(rounds, gamma, { steps, at }) {
  const whole = rounds.slice(1).filter(({ drafted }) => drafted === gamma);
  if (!whole.length || steps.length < 2) return undefined;
  const { alpha } = counted(rounds);
  const step_ms = typical(steps.slice(1));
  const draft_cost = typical(whole.map((round) => round.draft_ms)) / gamma / step_ms;
  const check_cost = typical(whole.map((round) => round.check_ms)) / step_ms;
  const plain_per_second = (1000 * (at.length - 1)) / (at.at(-1) - at[0]);
  return {
    step_ms,
    plain_per_second,
    draft_cost,
    check_cost,
    measured: roundTimes(rounds).per_second / plain_per_second,
    predicted: speedup(alpha, gamma, draft_cost, check_cost),
    with_free_check: speedup(alpha, gamma, draft_cost, 1),
  };
}

function mean(list) {
  return list.reduce((a, b) => a + b, 0) / list.length;
}

// The mean of the middle half: what else the machine did is left out, and a page's clock, which
// ticks in tenths of a millisecond, is averaged.
function typical(list) {
  const quarter = Math.floor(list.length / 4);
  return mean(list.toSorted((a, b) => a - b).slice(quarter, list.length - quarter));
}
