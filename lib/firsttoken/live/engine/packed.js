// Undo what assets.py does for the way to the browser: gzip, and the byte planes of weights.
import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";

// Return the file `name` from its packed bytes. `entry` is the manifest's: {bytes, sha256}.
// The browser's own SHA-256 is there only on pages with a safe address, hence the library's.
export async function unpack(bytes, name, entry) {
  const content = await decompressed(bytes, name);
  if (content.length !== entry.bytes) {
    throw new Error(`${name} has ${content.length} bytes; expected ${entry.bytes}. ${AGAIN}`);
  }
  const file = name.endsWith(".safetensors") ? woven(content) : content;
  if (bytesToHex(sha256(file)) !== entry.sha256) {
    throw new Error(`${name} is not the file that was shipped: its bytes were altered. ${AGAIN}`);
  }
  return file.buffer;
}

const AGAIN = "Trying again fetches it anew.";

async function decompressed(bytes, name) {
  try {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    const size = bytes.byteLength;
    throw new Error(`${name} arrived damaged: its ${size} bytes are no whole gzip file. ${AGAIN}`);
  }
}

// First all the first bytes of the numbers, then all the second ones: bring them together again.
function woven(planes) {
  const half = planes.length / 2;
  const file = new Uint8Array(planes.length);
  for (let i = 0; i < half; i += 1) {
    file[2 * i] = planes[i];
    file[2 * i + 1] = planes[half + i];
  }
  return file;
}
