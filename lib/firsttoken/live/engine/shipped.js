// The shipped models: a configuration and weights as Hugging Face stores them.
import { openModel } from "./llama.js";
import { openMatrices } from "./matrix.js";
import { openKernel } from "./memory.js";
import { checkShapes, readSafetensors } from "./safetensors.js";

export function createModel(config, weightsBuffer) {
  const arch = readConfig(config);
  const tensors = readSafetensors(weightsBuffer);
  checkShapes(tensors, weightShapes(arch));
  const heap = openKernel();
  const weights = loadWeights(heap, arch, weightsBuffer, tensors);
  return openModel({ heap, matrices: openMatrices(heap), arch, weights });
}

export function readConfig(config) {
  if (config.model_type !== "llama" || config.hidden_act !== "silu" || config.rope_scaling) {
    throw new Error("The configuration is not that of a plain Llama model.");
  }
  if (!config.tie_word_embeddings) {
    throw new Error("The configuration has an output matrix of its own; expected tied weights.");
  }
  const arch = {
    n_layers: config.num_hidden_layers,
    d_model: config.hidden_size,
    n_heads: config.num_attention_heads,
    n_kv_heads: config.num_key_value_heads,
    head_dim: config.head_dim,
    d_ff: config.intermediate_size,
    vocab_size: config.vocab_size,
    max_context: config.max_position_embeddings,
    eos_id: config.eos_token_id,
    end_ids: [config.eos_token_id],
    rope_theta: config.rope_theta,
    norm_eps: config.rms_norm_eps,
    pairs: "halves",
    unrotated: [],
    scales: { embedding: 1, residual: 1, logits: 1, attention: 1 / Math.sqrt(config.head_dim) },
  };
  for (const name of ["d_model", "d_ff", "vocab_size"]) {
    if (arch[name] % 8) throw new Error(`${name} is ${arch[name]}; expected a multiple of 8.`);
  }
  if (arch.head_dim % 16) {
    throw new Error(`head_dim is ${arch.head_dim}; expected a multiple of 16.`);
  }
  const sizes = [...weightShapes(arch).values()].map((shape) => shape.reduce((a, b) => a * b));
  return { ...arch, n_params: sizes.reduce((a, b) => a + b) };
}

// Hugging Face's names of the tensors, to their shapes [out, in].
export function weightShapes(arch) {
  const { d_model: d, d_ff: f } = arch;
  const query = arch.n_heads * arch.head_dim;
  const key = arch.n_kv_heads * arch.head_dim;
  const shapes = new Map([["model.embed_tokens.weight", [arch.vocab_size, d]]]);
  for (let layer = 0; layer < arch.n_layers; layer += 1) {
    const add = (name, ...shape) => shapes.set(`model.layers.${layer}.${name}.weight`, shape);
    add("input_layernorm", d);
    add("self_attn.q_proj", query, d);
    add("self_attn.k_proj", key, d);
    add("self_attn.v_proj", key, d);
    add("self_attn.o_proj", d, query);
    add("post_attention_layernorm", d);
    add("mlp.gate_proj", f, d);
    add("mlp.up_proj", f, d);
    add("mlp.down_proj", d, f);
  }
  return shapes.set("model.norm.weight", [d]);
}

// Copy a matrix to the kernel; return it as matrix.js takes it.
export function loadMatrix(heap, buffer, { offset, length, shape: [outputs, inputs] }) {
  const at = heap.take(length);
  new Uint8Array(heap.kernel.memory.buffer).set(new Uint8Array(buffer, offset, length), at);
  heap.kernel.interleave(at, at + length);
  return { kind: "bf16 interleaved", at, inputs, outputs };
}

// Copy the weights to the kernel; return where they are, by layer, the vectors of norms as f32.
export function loadWeights(heap, arch, buffer, tensors) {
  const matrix = (name) => loadMatrix(heap, buffer, tensors.get(name));
  const vector = (name) => {
    const { offset, length } = tensors.get(name);
    const halves = new Uint16Array(buffer.slice(offset, offset + length));
    return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
  };
  const blocks = Array.from({ length: arch.n_layers }, (_, layer) => {
    const name = (part) => `model.layers.${layer}.${part}.weight`;
    return {
      attentionNorm: vector(name("input_layernorm")),
      q: matrix(name("self_attn.q_proj")),
      k: matrix(name("self_attn.k_proj")),
      v: matrix(name("self_attn.v_proj")),
      out: matrix(name("self_attn.o_proj")),
      mlpNorm: vector(name("post_attention_layernorm")),
      gate: matrix(name("mlp.gate_proj")),
      up: matrix(name("mlp.up_proj")),
      down: matrix(name("mlp.down_proj")),
    };
  });
  const name = "model.embed_tokens.weight"; // a draft may use the target's
  const embedding = tensors.has(name) ? matrix(name) : undefined;
  return { blocks, embedding, unembedding: embedding, finalNorm: vector("model.norm.weight") };
}
