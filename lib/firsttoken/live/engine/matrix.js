// Products with weight matrices, which stay as their file has them: in the formats of GGUF, or in
// that of the shipped models. The sums are in blocks.wat.
import blocksBytes from "built/blocks.wasm";
import relaxedBytes from "built/blocks_relaxed.wasm";

// Unpacked weights of so many bytes stay in the processor's first cache.
const TILE_BYTES = 16384;

// The numbers and bytes of a block. Rows are made of whole ones; of plain numbers, blocks.wat
// takes eight at a time.
export const KINDS = {
  f32: { n: 8, bytes: 32 },
  f16: { n: 8, bytes: 16 },
  bf16: { n: 8, bytes: 16 },
  "bf16 interleaved": { n: 8, bytes: 16 }, // see `interleave` in kernel.wat
  q8_0: { n: 32, bytes: 34 },
  q4_0: { n: 32, bytes: 18 },
  q4_1: { n: 32, bytes: 20 },
  q4_K: { n: 256, bytes: 144 },
  q6_K: { n: 256, bytes: 210 },
};

// Blocks that can be used in place, without being unpacked to memory.
const IN_PLACE = ["q8_0", "q4_0", "q4_1"];

export function rowBytes(kind, inputs) {
  const { n, bytes } = KINDS[kind];
  return (inputs / n) * bytes;
}

// Matrices are {kind, at, inputs, outputs}: rows of `inputs` numbers, one for each output, from the
// address `at` on.
export function openMatrices(heap) {
  const { kernel } = heap;
  const blocks = openBlocks(kernel.memory);
  let room = { at: 0, size: 0 };
  let rounded = false;

  function roomFor(size) {
    if (room.size < size) {
      if (room.size) heap.giveBack(room.at, room.size);
      room = { at: heap.take(size), size };
    }
    return room.at;
  }

  // Unpack n rows from row `first` on.
  function unpack({ kind, at, inputs }, first, n, to) {
    const stride = rowBytes(kind, inputs);
    const start = at + first * stride;
    blocks[`unpack_${kind}`](start, start + n * stride, to);
  }

  // Unpack some rows of the matrix, and take all rows of x to them, before the next ones.
  function byTile(x, rows, matrix, y) {
    const { inputs, outputs } = matrix;
    const most = 4 * Math.ceil(TILE_BYTES / (inputs * 16));
    const tile = roomFor(most * inputs * 4);
    for (let first = 0; first < outputs; first += most) {
      const n = Math.min(most, outputs - first);
      unpack(matrix, first, n, tile);
      blocks.product(x, rows, tile, n, inputs, y + first * 4, outputs * 4);
    }
  }

  function inPlace(x, rows, { kind, at, inputs, outputs }, y) {
    const product = rounded ? blocks.rounded : blocks.rows;
    const free = roomFor(rows * inputs * 5);
    product(x, rows, at, KINDS[kind].bytes, outputs, inputs, y, free);
  }

  return {
    // y [rows, outputs] = x [rows, inputs] · matrixᵀ, where x and y are addresses of f32.
    multiply(x, rows, matrix, y) {
      const { kind, at, inputs, outputs } = matrix;
      const whole = IN_PLACE.includes(kind);
      if (kind === "bf16 interleaved") kernel.product(x, rows, at, inputs, outputs, y);
      else if (kind === "f32") blocks.product(x, rows, at, outputs, inputs, y, outputs * 4);
      else if (whole && (rounded || rows < 4)) inPlace(x, rows, matrix, y);
      else byTile(x, rows, matrix, y);
    },

    // Whether blocks that are used in place take x rounded to eight bits, 32 numbers at a time, as in
    // llama.cpp: where the browser has relaxed SIMD, in half the time. Other kinds take x as it is.
    round(on) {
      rounded = on;
    },

    // Write a row to the address `to`, as f32.
    row: (matrix, index, to) => unpack(matrix, index, 1, to),
  };
}

// blocks.wat, with relaxed SIMD where that is there: the same results.
function openBlocks(memory) {
  const open = (bytes) =>
    new WebAssembly.Instance(new WebAssembly.Module(bytes), { kernel: { memory } }).exports;
  const relaxed = WebAssembly.validate(relaxedBytes) && open(relaxedBytes);
  return relaxed && relaxed.dot_is_right() ? relaxed : open(blocksBytes);
}
