// GGUF files, as firsttoken.models.gguf reads them: what a model is, its tokenizer, where its tensors lie.
// Source: ggml, docs/gguf.md
import { KINDS, rowBytes } from "./matrix.js";

const MAGIC = "GGUF";
const VERSIONS = [2, 3];
const ALIGNMENT = 32;
const MOST_DIMS = 4;
const [STRING, ARRAY] = [8, 9];
// How a number is read, by what the file says of its type.
const NUMBERS = {
  0: [1, (view, at) => view.getUint8(at)],
  1: [1, (view, at) => view.getInt8(at)],
  2: [2, (view, at) => view.getUint16(at, true)],
  3: [2, (view, at) => view.getInt16(at, true)],
  4: [4, (view, at) => view.getUint32(at, true)],
  5: [4, (view, at) => view.getInt32(at, true)],
  6: [4, (view, at) => view.getFloat32(at, true)],
  7: [1, (view, at) => view.getUint8(at) !== 0],
  10: [8, (view, at) => Number(view.getBigUint64(at, true))],
  11: [8, (view, at) => Number(view.getBigInt64(at, true))],
  12: [8, (view, at) => view.getFloat64(at, true)],
};
// llama.cpp's numbers of the types of tensors that are read here.
const TYPES = {
  0: "f32",
  1: "f16",
  2: "q4_0",
  3: "q4_1",
  8: "q8_0",
  12: "q4_K",
  14: "q6_K",
  30: "bf16",
};

// Read the head of a file of `size` bytes that lies at `start` of a buffer: {metadata, tensors}.
// Metadata are numbers, strings and arrays of these, by llama.cpp's names. Tensors are, by name,
// {kind, shape, at}: the shape outermost first, `at` the place in the buffer.
export function readGguf(buffer, start, size) {
  const view = new DataView(buffer, start, size);
  const text = new TextDecoder();
  let at = 0;

  const take = (n) => {
    if (n > size - at) throw damaged(`it ends at byte ${size}, within its head`);
    at += n;
    return at - n;
  };
  const number = (type) => {
    const [n, read] = NUMBERS[type];
    return read(view, take(n));
  };
  const count = () => number(10);
  const string = () => {
    const n = count();
    return text.decode(new Uint8Array(buffer, start + take(n), n));
  };
  const value = (type, nested = false) => {
    if (type in NUMBERS) return number(type);
    if (type === STRING) return string();
    if (type !== ARRAY || nested)
      throw damaged(`a value of unknown type ${type} before byte ${at}`);
    const of = number(4);
    const n = count();
    if (n > size) throw damaged(`a list of ${n} values before byte ${at}`);
    return Array.from({ length: n }, () => value(of, true));
  };

  const magic = text.decode(new Uint8Array(buffer, start, Math.min(4, size)));
  if (magic !== MAGIC) throw damaged(`it begins with ${JSON.stringify(magic)}, expected "GGUF"`);
  take(4);
  const version = number(4);
  if (!VERSIONS.includes(version)) throw damaged(`its version is ${version}, expected 2 or 3`);
  const [nTensors, nValues] = [count(), count()];
  const metadata = {};
  for (let i = 0; i < nValues; i += 1) {
    const name = string();
    metadata[name] = value(number(4));
  }
  const heads = [];
  for (let i = 0; i < nTensors; i += 1) {
    const name = string();
    const nDims = number(4);
    if (nDims > MOST_DIMS) throw damaged(`${name} has ${nDims} dimensions, expected at most 4`);
    const shape = Array.from({ length: nDims }, count).reverse();
    heads.push({ name, shape, type: number(4), offset: count() });
  }
  const alignment = metadata["general.alignment"] ?? ALIGNMENT;
  const first = Math.ceil(at / alignment) * alignment;
  const tensors = new Map();
  for (const { name, shape, type, offset } of heads) {
    const kind = TYPES[type];
    if (!kind) {
      const known = Object.values(TYPES).join(", ");
      throw damaged(`${name} is of llama.cpp's type ${type}; read are ${known}`);
    }
    const width = shape.at(-1) ?? 1;
    if (width % KINDS[kind].n) {
      throw damaged(`${name} has the shape [${shape}], expected rows of whole ${kind} blocks`);
    }
    const rows = shape.slice(0, -1).reduce((a, b) => a * b, 1);
    const end = first + offset + rows * rowBytes(kind, width);
    if (!(end <= size)) throw damaged(`${name} ends at byte ${end}, the file at ${size}`);
    tensors.set(name, { kind, shape, at: start + first + offset });
  }
  return { metadata, tensors };
}

function damaged(words) {
  return new Error(`The file cannot be read as GGUF: ${words}.`);
}
