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
  const top = logits[argmax(logits)];
  const result = logits.slice();
  let total = 0;
  for (let i = 0; i < result.length; i += 1) {
    result[i] -= top;
    result[i] = Math.exp(result[i]);
    total += result[i];
  }
  for (let i = 0; i < result.length; i += 1) result[i] /= total;
  return result;
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
  let total = 0;
  for (const probability of probabilities) total += probability;
  const threshold = random() * total;
  let mass = 0;
  for (let id = 0; id < probabilities.length; id += 1) {
    mass += probabilities[id];
    if (mass > threshold) return id;
  }
  throw new Error("probabilities must be not negative, finite, not all 0");
}

// Return a token: the first to arrive, if each comes as often as its probability says. In the library
// siblings are drawn so, without replacement.
export function drawFirst(probabilities, { exponential }) {
  let first = 0;
  let soonest = Infinity;
  for (let id = 0; id < probabilities.length; id += 1) {
    const arrival = exponential() / probabilities[id];
    if (arrival < soonest) [first, soonest] = [id, arrival];
  }
  return first;
}

// Return the first place of the largest number.
export function argmax(numbers) {
  let best = 0;
  for (let i = 1; i < numbers.length; i += 1) if (numbers[i] > numbers[best]) best = i;
  return best;
}

// Return the ids of the n largest numbers, falling, of equal ones the lower id first.
export function largest(numbers, n) {
  const ids = [];
  for (let id = 0; id < numbers.length; id += 1) {
    if (ids.length === n && !(numbers[id] > numbers[ids[n - 1]])) continue;
    let place = 0; // behind all that are not smaller: they lie in 0 … end
    for (let end = ids.length; place < end;) {
      const middle = (place + end) >> 1;
      if (numbers[ids[middle]] < numbers[id]) end = middle;
      else place = middle + 1;
    }
    ids.splice(place, 0, id);
    if (ids.length > n) ids.pop();
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
  const top = logits[argmax(logits)];
  // A tiny temperature can push even the largest logit to infinity. Softmax sees differences only,
  // so count from the top there.
  if (!Number.isFinite(fround(top / divisor))) return logits.map((x) => (x - top) / temperature);
  const result = logits.slice();
  for (let i = 0; i < result.length; i += 1) result[i] /= divisor;
  return result;
}

function keepMinP(logits, minP) {
  const bound = logits[argmax(logits)] + Math.log(minP) - ROUNDING_SLACK;
  return logits.map((x) => (x >= bound ? x : -Infinity));
}

function keepTopP(logits, p) {
  const probabilities = softmax(new Float64Array(logits));
  // Those below (1 - p) / V have together less than 1 - p: the others reach p without them, even
  // with half of it, which leaves room for rounding.
  const least = (1 - p) / (2 * logits.length);
  const rising = probabilities.filter((x) => x >= least).sort();
  let n = 0;
  let mass = 0;
  do mass += rising[rising.length - ++n];
  while (n < rising.length && mass < p - ROUNDING_SLACK);
  return keepLargest(logits, n);
}

// Keep the n largest, of equal ones those with the lower id.
function keepLargest(logits, n) {
  const kept = logits.slice().fill(-Infinity);
  for (const id of largest(logits, n)) kept[id] = logits[id];
  return kept;
}
