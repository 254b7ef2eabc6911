// From logits to the next token, as firsttoken.sampling does it: the same tokens are kept, and the
// same random numbers choose the same token. Logits are Float32Arrays, whose `map` rounds to 32 bits
// as NumPy does; sums are of 64 bits, and what NumPy compares in 64 bits is compared in 64.
import { checkCount } from "./checks.js";

const { fround } = Math;
const DEFAULTS = {
  temperature: 1,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  repetition_penalty: 1,
  seed: null,
};
const RANGES = {
  temperature: [0, Infinity],
  top_p: [0, 1],
  min_p: [0, 1],
  repetition_penalty: [0, Infinity],
};
const LARGEST = fround(3.4028234663852886e38);
// What rounding may take from a sum of probabilities: a bound reached but for that counts.
const ROUNDING_SLACK = 2 * 2 ** -23;

// Return how a request wants its tokens chosen, with firsttoken.SamplingParams' defaults.
export function samplingParams(given = {}) {
  for (const name of Object.keys(given)) {
    if (!(name in DEFAULTS)) {
      throw new Error(`params must be among ${Object.keys(DEFAULTS).join(", ")}, got ${name}`);
    }
  }
  const params = { ...DEFAULTS, ...given };
  for (const [name, [low, high]] of Object.entries(RANGES)) {
    const value = params[name];
    if (typeof value !== "number" || !(low <= value && value <= high) || value === Infinity) {
      const expected = `a number within ${low} … ${high === Infinity ? "inf" : high}`;
      throw new Error(`${name} must be ${expected}, got ${value}`);
    }
  }
  if (params.repetition_penalty === 0) {
    throw new Error("repetition_penalty must be above 0, got 0");
  }
  checkCount("top_k", params.top_k);
  if (params.seed !== null) checkCount("seed", params.seed);
  return params;
}

// Return the probabilities that logits stand for, in their format; -Infinity becomes exactly 0.
export function softmax(logits) {
  const top = maximum(logits);
  const weights = logits.map((x) => x - top).map((x) => Math.exp(x));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

// Return the probabilities of the token after `ids`: penalty, temperature, min-p, top-k, top-p.
export function nextTokenDistribution(logits, params, ids) {
  let left = applyTemperature(penalize(logits, params, ids), params.temperature);
  if (params.min_p > 0) left = keepMinP(left, params.min_p);
  if (params.top_k > 0 && params.top_k < left.length) left = keepLargest(left, params.top_k);
  if (params.top_p < 1) left = keepTopP(left, params.top_p);
  return softmax(left);
}

// Return a token: where a random number falls among the summed probabilities.
export function draw(probabilities, { random }) {
  const threshold = random() * sum(probabilities);
  let mass = 0;
  for (let id = 0; id < probabilities.length; id++) {
    mass += probabilities[id];
    if (mass > threshold) return id;
  }
  throw new Error("probabilities must be not negative, finite, not all 0");
}

// Return the first place of the largest number.
export function argmax(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i++) if (numbers[i] > numbers[best]) best = i;
  return best;
}

// Return the ids of the n largest numbers, falling, of equal ones the lower id first.
export function largest(numbers, n) {
  const ids = [];
  for (let id = 0; id < numbers.length; id++) {
    if (ids.length === n && !(numbers[id] > numbers[ids[n - 1]])) continue;
    let place = ids.length;
    while (place > 0 && numbers[ids[place - 1]] < numbers[id]) place -= 1;
    ids.splice(place, 0, id);
    ids.length = Math.min(ids.length, n);
  }
  return ids;
}

function penalize(logits, params, ids) {
  const penalty = params.repetition_penalty;
  if (penalty === 1) return logits;
  const result = logits.slice();
  for (const id of new Set(ids)) {
    result[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
  }
  return result;
}

function applyTemperature(logits, temperature) {
  if (temperature === 1) return logits;
  if (temperature === 0) return keepLargest(logits, 1);
  const divisor = fround(Math.min(temperature, LARGEST));
  const top = maximum(logits);
  // A tiny temperature can push even the largest logit to infinity. Softmax sees differences only,
  // so count from the top there.
  const overflow = !Number.isFinite(fround(top / divisor));
  return logits.map(overflow ? (x) => (x - top) / temperature : (x) => x / divisor);
}

function keepMinP(logits, minP) {
  const bound = maximum(logits) + Math.log(minP) - ROUNDING_SLACK;
  return logits.map((x) => (x >= bound ? x : -Infinity));
}

function keepTopP(logits, p) {
  const falling = logits.slice().sort().reverse();
  const probabilities = softmax(Float64Array.from(falling));
  let n = 0;
  let mass = 0;
  do mass += probabilities[n++];
  while (n < falling.length && mass < p - ROUNDING_SLACK);
  return keepLargest(logits, n);
}

// Keep the n largest, of equal ones those with the lower id.
function keepLargest(logits, n) {
  const least = logits.slice().sort()[logits.length - n];
  let nTies = n;
  for (const x of logits) if (x > least) nTies -= 1;
  return logits.map((x) => (x > least || (x === least && nTies-- > 0) ? x : -Infinity));
}

function maximum(numbers) {
  return numbers.reduce((a, b) => Math.max(a, b));
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}
