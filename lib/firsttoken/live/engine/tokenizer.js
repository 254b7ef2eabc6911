// Text to token ids and back: byte-level BPE, as firsttoken.tokenizer does it.
//
// The merging is the npm library's. Cutting the text into words is not: its `\s` and `\p{L}` are
// those of the browser, so that a text would have other tokens in another browser. And its
// handling of special tokens is left out: no text encodes to one, not even its own name.
import { BPE } from "@huggingface/tokenizers";
import { LETTERS, NUMBERS } from "./letters.js";

export function createTokenizer(json) {
  const bpe = new BPE(json.model);
  const idOf = new Map(Object.entries(json.model.vocab));
  const special = new Map(json.added_tokens.map(({ id, content }) => [id, content]));
  const table = tokenBytes(idOf, special);
  const bytes = (id) => {
    if (!Number.isInteger(id) || !(id in table)) {
      throw new Error(`token id ${id} is outside 0 … ${table.length - 1}`);
    }
    return table[id];
  };
  return {
    encode: (text) => bpe.encode(words(text)).map((token) => idOf.get(token)),
    decode: (ids) => textStream(bytes).all(ids),
    named: (id) => ({ id, piece: special.get(id) ?? shown(bytes(id)) }),
    stream: () => textStream(bytes),
  };
}

// Decode ids one at a time: push(id) gives the text that is certain by now, finish() what is left.
function textStream(bytes) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const push = (id) => decoder.decode(bytes(id), { stream: true });
  const finish = () => decoder.decode();
  return { push, finish, all: (ids) => ids.map(push).join("") + finish() };
}

// The text of one token as a reader sees it: bytes that form no character alone as \xe2.
function shown(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return Array.from(bytes, (byte) =>
      byte < 0x80 ? String.fromCharCode(byte) : `\\x${byte.toString(16)}`,
    ).join("");
  }
}

const SPACE = "\\p{White_Space}";
const [LETTER, NUMBER] = [LETTERS, NUMBERS].map(characterClass);
const WORD = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?[${LETTER}]+| ?[${NUMBER}]+| ?[^${SPACE}${LETTER}${NUMBER}]+` +
    `|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
  "gu",
);

// Ranges of code points, "gap length gap length …" in base 36, as a part of a regular expression.
function characterClass(ranges) {
  const steps = ranges.split(" ").map((step) => parseInt(step, 36));
  let end = 0;
  let result = "";
  for (let i = 0; i < steps.length; i += 2) {
    const start = end + steps[i];
    end = start + steps[i + 1];
    result += `\\u{${start.toString(16)}}-\\u{${end.toString(16)}}`;
  }
  return result;
}

// The words of a text, each as one character per byte. Unpaired surrogates become U+FFFD.
function words(text) {
  const encoder = new TextEncoder();
  return (wellFormed(text).match(WORD) ?? []).map((word) =>
    Array.from(encoder.encode(word), (byte) => BYTE_CHARACTERS[byte]).join(""),
  );
}

function wellFormed(text) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new TextEncoder().encode(text));
}

// The printable character that stands for each byte in a byte-level vocabulary: printable Latin-1
// for itself, the others for the characters from U+0100 on (openai/gpt-2, bytes_to_unicode).
const BYTE_CHARACTERS = byteCharacters();

function byteCharacters() {
  let substitute = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
    return String.fromCharCode(printable ? byte : substitute++);
  });
}

// The bytes of every token, by id; none for a special one.
function tokenBytes(idOf, special) {
  const byteOf = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));
  const table = [];
  for (const [token, id] of idOf) {
    table[id] = Uint8Array.from(special.has(id) ? [] : token, (character) => byteOf.get(character));
  }
  return table;
}
