// NumPy's random numbers: numpy.random.default_rng(seed).random(), number by number.
// Sources: O'Neill 2014, PCG (XSL-RR output, 128 bits of state); O'Neill 2015, seed_seq_fe128, which
// numpy/random/bit_generator.pyx has as SeedSequence.

const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

// Return a generator: random() gives the next number of [0, 1). Seed: an integer from 0 on; without
// one every generator is another. Integers above 2^53 need a BigInt.
export function createRandom(seed) {
  const [high, low, streamHigh, streamLow] = seedWords(BigInt(seed ?? freshSeed()));
  const increment = (((streamHigh << 64n) | streamLow) << 1n) | 1n;
  const step = (state) => BigInt.asUintN(128, state * MULTIPLIER + increment);
  let state = step(step(0n) + ((high << 64n) | low));
  return {
    random: () => {
      state = step(state);
      return Number(rotated(state) >> 11n) / 2 ** 53;
    },
  };
}

// XSL-RR: the two halves of the state, turned right by its six highest bits.
function rotated(state) {
  const folded = BigInt.asUintN(64, (state >> 64n) ^ state);
  const turn = state >> 122n;
  return BigInt.asUintN(64, (folded >> turn) | (folded << (64n - turn)));
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
