// The Llama that a GGUF file holds: its architecture, and its weights where they lie in the file, in
// their blocks. The families are those of firsttoken.models.gguf.
import { readGguf } from "./gguf.js";
import { openModel } from "./llama.js";
import { openMatrices } from "./matrix.js";
import { tokenizerOfGguf } from "./tokenizer.js";

const MOST_CONTEXT = 2048; // a page's: more keys and values would take more memory than the weights
// Which families are read, and whether llama.cpp has put the rows of queries and keys in an order of
// its own: there the two numbers of a rotated pair are neighbours.
const FAMILIES = { llama: true, granite: true, smollm3: true, qwen2: false, qwen3: false };

// Open the file of `size` bytes that lies at the address `at` of the kernel's memory, and stays there:
// {tokenizer, model}.
export function openGguf(heap, at, size) {
  const file = readGguf(heap.kernel.memory.buffer, at, size);
  const tokenizer = tokenizerOfGguf(file.metadata);
  const matrices = openMatrices(heap);
  const unpack = ({ kind, at, shape: [size] }) => {
    const to = heap.take(size * 4);
    matrices.row({ kind, at, inputs: size, outputs: 1 }, 0, to);
    const numbers = heap.floats.slice(to / 4, to / 4 + size);
    heap.giveBack(to, size * 4);
    return numbers;
  };
  const model = openModel({ heap, matrices, ...readLlama(file, tokenizer, unpack) });
  return { tokenizer, model };
}

// {arch, weights} as `openModel` takes them. `unpack` gives the numbers of a tensor that is a vector.
function readLlama({ metadata, tensors }, tokenizer, unpack) {
  const family = metadata["general.architecture"];
  if (!(family in FAMILIES)) {
    const known = Object.keys(FAMILIES).join(", ");
    throw new Error(`The file's model is of the family ${family}; expected one of ${known}.`);
  }
  const value = (name, otherwise) => {
    const found = metadata[`${family}.${name}`] ?? otherwise;
    if (typeof found !== "number") {
      throw new Error(`${family}.${name} is ${found}; expected a number.`);
    }
    return found;
  };
  const scaling = metadata[`${family}.rope.scaling.type`] ?? "none";
  if (scaling !== "none") {
    throw new Error(`${family}.rope.scaling.type is ${scaling}; expected none.`);
  }
  const find = (name, ...shape) => {
    const found = tensors.get(name);
    if (!found) throw new Error(`The file lacks ${name}.`);
    if (shape.some((size, i) => size !== found.shape[i]) || shape.length !== found.shape.length) {
      throw new Error(`${name} has the shape [${found.shape}]; expected [${shape}].`);
    }
    used.add(name);
    return found;
  };
  const used = new Set();
  const matrix = (name, outputs, inputs) => {
    const { kind, at } = find(`${name}.weight`, outputs, inputs);
    return { kind, at, inputs, outputs };
  };
  const vector = (name, size) => unpack(find(name, size));

  const d = value("embedding_length");
  const nHeads = value("attention.head_count");
  const headDim = value("attention.key_length", d / nHeads);
  const granite = family === "granite";
  const arch = {
    n_layers: value("block_count"),
    d_model: d,
    n_heads: nHeads,
    n_kv_heads: value("attention.head_count_kv", nHeads),
    head_dim: headDim,
    d_ff: value("feed_forward_length"),
    vocab_size: tensors.get("token_embd.weight")?.shape[0],
    max_context: Math.min(MOST_CONTEXT, value("context_length")),
    eos_id: tokenizer.start_id,
    end_ids: tokenizer.end_ids,
    rope_theta: value("rope.freq_base", 10_000),
    norm_eps: value("attention.layer_norm_rms_epsilon"),
    pairs: FAMILIES[family] ? "neighbours" : "halves",
    unrotated: family === "smollm3" ? everyFourth(value("block_count")) : [],
    scales: {
      embedding: granite ? value("embedding_scale", 1) : 1,
      residual: granite ? value("residual_scale", 1) : 1,
      logits: granite ? 1 / value("logit_scale", 1) : 1,
      attention: granite ? value("attention.scale") : 1 / Math.sqrt(headDim),
    },
  };
  if (headDim % 16)
    throw new Error(`The heads have ${headDim} numbers; expected a multiple of 16.`);
  const [q, kv, f] = [nHeads * headDim, arch.n_kv_heads * headDim, arch.d_ff];
  const biased = family === "qwen2";
  const normed = family === "qwen3";
  const weights = {
    embedding: matrix("token_embd", arch.vocab_size, d),
    finalNorm: vector("output_norm.weight", d),
    blocks: Array.from({ length: arch.n_layers }, (_, layer) => {
      const name = (part) => `blk.${layer}.${part}`;
      return {
        attentionNorm: vector(name("attn_norm.weight"), d),
        q: matrix(name("attn_q"), q, d),
        k: matrix(name("attn_k"), kv, d),
        v: matrix(name("attn_v"), kv, d),
        qBias: biased && vector(name("attn_q.bias"), q),
        kBias: biased && vector(name("attn_k.bias"), kv),
        vBias: biased && vector(name("attn_v.bias"), kv),
        qNorm: normed && vector(name("attn_q_norm.weight"), headDim),
        kNorm: normed && vector(name("attn_k_norm.weight"), headDim),
        out: matrix(name("attn_output"), d, q),
        mlpNorm: vector(name("ffn_norm.weight"), d),
        gate: matrix(name("ffn_gate"), f, d),
        up: matrix(name("ffn_up"), f, d),
        down: matrix(name("ffn_down"), d, f),
      };
    }),
  };
  weights.unembedding = tensors.has("output.weight")
    ? matrix("output", arch.vocab_size, d)
    : weights.embedding;
  for (const name of tensors.keys()) {
    if (!used.has(name)) throw new Error(`The file holds ${name}, which nothing here uses.`);
  }
  const numbers = [...tensors.values()].map(({ shape }) => shape.reduce((a, b) => a * b, 1));
  return { arch: { ...arch, n_params: numbers.reduce((a, b) => a + b) }, weights };
}

function everyFourth(n) {
  return Array.from({ length: n }, (_, layer) => layer).filter((layer) => layer % 4 === 3);
}
