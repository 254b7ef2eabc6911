// Drafts that see what the target thinks, as in firsttoken.drafts.heads: Medusa's heads and EAGLE.
import { openCache } from "./cache.js";
import { openPass } from "./llama.js";
import { openMatrices } from "./matrix.js";
import { openKernel } from "./memory.js";
import { checkShapes, readSafetensors } from "./safetensors.js";
import { loadMatrix, loadWeights, readConfig, weightShapes } from "./shipped.js";

// One matrix for each place ahead moves the target's feature f: f + silu(W f).
// Source: Cai et al. 2024, Medusa, arXiv:2401.10774, sec. 2.1
export function createMedusa(weightsBuffer) {
  const tensors = readSafetensors(weightsBuffer);
  const names = Array.from({ length: tensors.size }, (_, i) => `heads.${i}.weight`);
  const width = tensors.get(names[0])?.shape[0];
  checkShapes(tensors, new Map(names.map((name) => [name, [width, width]])));
  const heap = openKernel();
  const { multiply } = openMatrices(heap);
  const heads = names.map((name) => loadMatrix(heap, weightsBuffer, tensors.get(name)));
  const [atFeature, atMoved] = [heap.take(width * 4), heap.take(width * 4)];
  return {
    arch: { n_heads: heads.length, d_model: width },
    get memoryBytes() {
      return heap.kernel.memory.buffer.byteLength;
    },
    // What each head makes of a feature [D]: [n·D].
    moved(feature) {
      const result = new Float32Array(heads.length * width);
      heap.floats.set(feature, atFeature / 4);
      heads.forEach((head, i) => {
        multiply(atFeature, 1, head, atMoved);
        const z = new Float32Array(heap.floats.buffer, atMoved, width);
        result.set(
          z.map((x, at) => feature[at] + x / (1 + Math.exp(-x))),
          i * width,
        );
      });
      return result;
    },
  };
}

// A layer of the target's kind reads a feature and the embedding of the token after it, and says the
// next feature. Source: Li et al. 2024, EAGLE, arXiv:2401.15077, sec. 3
export function createEagle(config, weightsBuffer) {
  const arch = readConfig(config);
  const { d_model } = arch;
  const tensors = readSafetensors(weightsBuffer);
  const shapes = weightShapes(arch).set("fc.weight", [d_model, 2 * d_model]);
  shapes.delete("model.embed_tokens.weight"); // the target's
  checkShapes(tensors, shapes);
  const heap = openKernel();
  const matrices = openMatrices(heap);
  const run = openPass(heap, matrices, arch, loadWeights(heap, arch, weightsBuffer, tensors));
  const mix = loadMatrix(heap, weightsBuffer, tensors.get("fc.weight"));
  const atPair = heap.take(2 * d_model * 4);
  return {
    arch,
    get memoryBytes() {
      return heap.kernel.memory.buffer.byteLength;
    },
    newCache: (capacity) => openCache(heap, arch, capacity),
    // The feature [D] that follows the last of some features [n·D], each with the embedding [n·D] of
    // the token after it.
    next(features, embeddings, cache) {
      const row = (vectors, i) => vectors.subarray(i * d_model, (i + 1) * d_model);
      const enter = (from, n) => {
        for (let i = 0; i < n; i += 1) {
          heap.floats.set(row(features, from + i), atPair / 4);
          heap.floats.set(row(embeddings, from + i), atPair / 4 + d_model);
          matrices.multiply(atPair, 1, mix, run.at.x + i * d_model * 4);
        }
      };
      const n = run.through(features.length / d_model, enter, cache);
      return run.features(n - 1, 1).slice();
    },
  };
}
