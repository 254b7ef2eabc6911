// NumPy's random numbers: those of numpy.random.default_rng(seed), one by one.
// Sources: O'Neill 2014, PCG (XSL-RR output, 128 bits of state); O'Neill 2015, seed_seq_fe128, which
// numpy/random/bit_generator.pyx has as SeedSequence; Marsaglia and Tsang 2000, the ziggurat.

const DIGIT = 2 ** 24;
const TAIL_FROM = 7.69711747013105;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
const [M0, M1, M2, M3, M4, M5] = digits(MULTIPLIER);
const { widths: WIDTHS, heights: HEIGHTS, inside: INSIDE } = ziggurat();

// Return a generator: random() gives the next number of [0, 1), exponential() the next time to wait
// for what comes once per unit of time. Seed: an integer from 0 on; without one every generator is
// another. Integers above 2^53 need a BigInt.
export function createRandom(seed) {
  const bits = createBits(BigInt(seed ?? freshSeed()));
  const random = () => {
    bits.step();
    return bits.top53() / 2 ** 53;
  };
  const exponential = () => {
    for (;;) {
      bits.step();
      const layer = (bits.low >>> 3) & 255;
      const x = bits.top53() * WIDTHS[layer];
      if (bits.top53() < INSIDE[layer]) return x;
      if (layer === 0) return TAIL_FROM - Math.log1p(-random());
      const [outer, inner] = [HEIGHTS[layer - 1], HEIGHTS[layer]];
      if ((outer - inner) * random() + inner < Math.exp(-x)) return x;
    }
  };
  return { random, exponential };
}

// PCG: after step(), `high` and `low` are the next 64 bits.
function createBits(seed) {
  const [high, low, streamHigh, streamLow] = seedWords(seed);
  const increment = (((streamHigh << 64n) | streamLow) << 1n) | 1n;
  const first = (increment + ((high << 64n) | low)) * MULTIPLIER + increment;
  const state = digits(BigInt.asUintN(128, first));
  const [i0, i1, i2, i3, i4, i5] = digits(increment);
  return {
    high: 0,
    low: 0,
    // state · multiplier + increment, digit by digit: with BigInt it takes four times as long.
    step() {
      const [a, b, c, d, e, f] = [state[0], state[1], state[2], state[3], state[4], state[5]];
      const s0 = a * M0 + i0;
      const s1 = a * M1 + b * M0 + i1 + carry(s0);
      const s2 = a * M2 + b * M1 + c * M0 + i2 + carry(s1);
      const s3 = a * M3 + b * M2 + c * M1 + d * M0 + i3 + carry(s2);
      const s4 = a * M4 + b * M3 + c * M2 + d * M1 + e * M0 + i4 + carry(s3);
      const s5 = a * M5 + b * M4 + c * M3 + d * M2 + e * M1 + f * M0 + i5 + carry(s4);
      state[0] = s0 - carry(s0) * DIGIT;
      state[1] = s1 - carry(s1) * DIGIT;
      state[2] = s2 - carry(s2) * DIGIT;
      state[3] = s3 - carry(s3) * DIGIT;
      state[4] = s4 - carry(s4) * DIGIT;
      state[5] = s5 - Math.floor(s5 / 256) * 256; // the uppermost eight bits of 128
      this.mix();
    },
    // XSL-RR: the two halves of the state, turned right by its six highest bits.
    mix() {
      const top = state[4] | (state[5] << 24);
      const upper = top ^ ((state[1] >>> 8) | (state[2] << 16));
      const lower = ((state[2] >>> 16) | (state[3] << 8)) ^ (state[0] | (state[1] << 24));
      const swapped = top < 0; // by 32 bits, and then by `turn`
      const turn = (top >>> 26) & 31;
      const high = swapped ? lower : upper;
      const low = swapped ? upper : lower;
      // `<< 1 <<` for a turn of 0: a shift by 32 is none.
      this.high = ((high >>> turn) | ((low << 1) << (31 - turn))) >>> 0;
      this.low = ((low >>> turn) | ((high << 1) << (31 - turn))) >>> 0;
    },
    top53() {
      return this.high * 2 ** 21 + (this.low >>> 11);
    },
  };
}

// The six digits of 24 bits of a number of 128, the lowest first: products of two, and their sums,
// are exact in 64-bit floats.
function digits(number) {
  return Float64Array.from({ length: 6 }, (_, i) => Number((number >> BigInt(24 * i)) & 0xffffffn));
}

function carry(sum) {
  return Math.floor(sum / DIGIT);
}

function freshSeed() {
  return crypto.getRandomValues(new BigUint64Array(1))[0];
}

// SeedSequence(seed).generate_state(4, uint64).
function seedWords(seed) {
  const pool = mixedPool(words32(seed));
  const hash = hasher(0x8b51f9dd, 0x58f38ded);
  const half = Array.from({ length: 8 }, (_, i) => BigInt(hash(pool[i % pool.length])));
  return [0, 2, 4, 6].map((i) => (half[i + 1] << 32n) | half[i]);
}

function mixedPool(entropy) {
  const hash = hasher(0x43b0d7e5, 0x931e8875);
  const pool = Array.from({ length: 4 }, (_, i) => hash(entropy[i] ?? 0));
  for (let source = 0; source < 4; source++) {
    for (let target = 0; target < 4; target++) {
      if (source !== target) pool[target] = mixed(pool[target], hash(pool[source]));
    }
  }
  for (const word of entropy.slice(4)) {
    for (let target = 0; target < 4; target++) pool[target] = mixed(pool[target], hash(word));
  }
  return pool;
}

// A hash whose constant changes with every word.
function hasher(constant, multiplier) {
  return (word) => {
    const value = word ^ constant;
    constant = Math.imul(constant, multiplier);
    const product = Math.imul(value, constant);
    return (product ^ (product >>> 16)) >>> 0;
  };
}

function mixed(x, y) {
  const value = Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y);
  return (value ^ (value >>> 16)) >>> 0;
}

// The 32-bit words of a seed, the lowest first.
function words32(seed) {
  const words = [];
  do {
    words.push(Number(seed & 0xffffffffn));
    seed >>= 32n;
  } while (seed > 0n);
  return words;
}

// The ziggurat of e^-x: 256 layers of one area, HEIGHTS up to which each reaches. A number of 53 bits
// times WIDTHS is a point of its layer, and lies under the curve for sure if it is below INSIDE.
function ziggurat() {
  const [n, area] = [256, 0.003949659822581557];
  const [widths, heights, inside] = [0, 0, 0].map(() => new Float64Array(n));
  const rim = Math.exp(-TAIL_FROM);
  let outer = TAIL_FROM;
  widths[0] = area / rim / 2 ** 53; // the lowest layer has the tail, too
  widths[n - 1] = outer / 2 ** 53;
  heights[0] = 1;
  heights[n - 1] = rim;
  inside[0] = Math.floor((outer * rim * 2 ** 53) / area);
  for (let layer = n - 2; layer > 0; layer -= 1) {
    const x = -Math.log(area / outer + Math.exp(-outer));
    inside[layer + 1] = Math.floor((x / outer) * 2 ** 53);
    widths[layer] = x / 2 ** 53;
    heights[layer] = Math.exp(-x);
    outer = x;
  }
  return { widths, heights, inside };
}
