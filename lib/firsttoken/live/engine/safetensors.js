// The format of the weights: eight bytes with the length of a header, the header (JSON: what lies
// where), and the numbers. Source: huggingface/safetensors, README.md, "Format"

const BYTES_BF16 = 2;

// Where each tensor lies in the file: name to {dtype, shape, offset, length}, in bytes.
export function readSafetensors(buffer) {
  const header = readHeader(buffer);
  const start = 8 + headerLength(buffer);
  const tensors = new Map();
  for (const [name, { dtype, shape, data_offsets: [from, to] = [] }] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    if (dtype !== "BF16") throw new Error(`${name} is stored as ${dtype}; expected BF16.`);
    const expected = shape.reduce((product, size) => product * size, BYTES_BF16);
    if (to - from !== expected) {
      throw new Error(`${name} [${shape}] takes ${to - from} bytes; expected ${expected}.`);
    }
    if (start + to > buffer.byteLength) {
      throw new Error(
        `The weights end after ${buffer.byteLength} bytes; ${name} needs ${start + to}.`,
      );
    }
    tensors.set(name, { dtype, shape, offset: start + from, length: to - from });
  }
  return tensors;
}

function headerLength(buffer) {
  if (buffer.byteLength < 8) {
    throw new Error(`The weights end after ${buffer.byteLength} bytes, before their header.`);
  }
  return Number(new DataView(buffer).getBigUint64(0, true));
}

function readHeader(buffer) {
  const length = headerLength(buffer);
  if (8 + length > buffer.byteLength) {
    throw new Error(
      `The weights end after ${buffer.byteLength} bytes; their header needs ${8 + length}.`,
    );
  }
  try {
    return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  } catch {
    throw new Error("The header of the weights is not readable: the file was altered.");
  }
}

// Throws unless the tensors are exactly those expected: name to shape.
export function checkShapes(tensors, expected) {
  for (const [name, shape] of expected) {
    const found = tensors.get(name);
    if (!found) throw new Error(`The weights lack ${name}.`);
    if (String(found.shape) !== String(shape)) {
      throw new Error(`${name} has the shape [${found.shape}]; expected [${shape}].`);
    }
  }
  for (const name of tensors.keys()) {
    if (!expected.has(name)) throw new Error(`The weights hold ${name}, which nothing uses.`);
  }
}
