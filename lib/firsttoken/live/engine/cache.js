// What a model has read: the keys and values of a text.
import { checkIndex } from "./checks.js";

export const BLOCK = 16; // so many keys does the kernel compare at once

// Keys and values of `capacity` tokens: for each layer and KV head the keys, in blocks of sixteen
// positions, [capacity/16, H, 16], as the kernel compares them, then the values, [capacity, H].
export function openCache(heap, arch, capacity) {
  const { n_layers, n_kv_heads, head_dim } = arch;
  // All of one size, so that what one gives back serves the next. What is not written to is memory
  // that the browser has promised and not yet taken.
  const places = Math.ceil(Math.max(capacity, arch.max_context) / BLOCK) * BLOCK;
  const headBytes = places * head_dim * 4;
  const tokenBytes = n_layers * n_kv_heads * 2 * head_dim * 4;
  const at = heap.take(places * tokenBytes);
  const atKeys = (layer, head) => at + (layer * n_kv_heads + head) * 2 * headBytes;
  return {
    length: 0,
    capacity,
    capacityBytes: capacity * tokenBytes,
    get bytes() {
      return this.length * tokenBytes;
    },
    atKeys,
    atValues: (layer, head) => atKeys(layer, head) + headBytes,
    truncate(length) {
      checkIndex("length", length, this.length + 1);
      this.length = length;
    },
    // After this the cache must not be used: its memory goes to others.
    free: () => heap.giveBack(at, places * tokenBytes),
  };
}
