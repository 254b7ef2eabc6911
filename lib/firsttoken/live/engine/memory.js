// The kernel's memory: pieces of it are given out, and taken back when they are free.
import kernelBytes from "built/kernel.wasm";

const PAGE = 65536; // bytes

export function openKernel() {
  if (!WebAssembly.validate(kernelBytes)) {
    throw new Error("This browser cannot run the model: it lacks the vector instructions (SIMD).");
  }
  const kernel = new WebAssembly.Instance(new WebAssembly.Module(kernelBytes)).exports;
  const free = new Map(); // size to addresses
  let end = 0;
  let floats = new Float32Array(kernel.memory.buffer);
  return {
    kernel,
    // All of the memory as numbers; another array after the memory has grown.
    get floats() {
      return floats;
    },
    take(bytes) {
      const size = Math.ceil(bytes / 64) * 64;
      const reused = free.get(size)?.pop();
      if (reused !== undefined) return reused;
      const missing = end + size - kernel.memory.buffer.byteLength;
      if (missing > 0) {
        grow(kernel.memory, missing);
        floats = new Float32Array(kernel.memory.buffer);
      }
      end += size;
      return end - size;
    },
    giveBack(at, bytes) {
      const size = Math.ceil(bytes / 64) * 64;
      free.set(size, [...(free.get(size) ?? []), at]);
    },
  };
}

function grow(memory, bytes) {
  try {
    memory.grow(Math.ceil(bytes / PAGE));
  } catch {
    const megabytes = Math.ceil((memory.buffer.byteLength + bytes) / 1e6);
    throw new Error(
      `The model needs ${megabytes} MB of memory, and the browser gives no more. ` +
        "Close other pages, or play with it on a larger machine.",
    );
  }
}
