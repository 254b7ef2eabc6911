// Text to token ids and back: byte-level BPE, as firsttoken.models.tokenizer does it.
import { alternatives } from "./alternatives.js";
import { CUTS } from "./cuts.js";
import { createMerges } from "./merges.js";

// llama.cpp's numbers for a token that is a mark, and for a piece of text that is never cut.
const [CONTROL, ADDED] = [3, 4];

// The shipped tokenizer, out of its tokenizer.json.
export function createTokenizer({ model: { vocab, merges }, added_tokens }) {
  const names = Object.keys(vocab).sort((a, b) => vocab[a] - vocab[b]);
  const special = new Map(added_tokens.map(({ id, content }) => [id, content]));
  return byteLevel({ names, merges, cut: "gpt-2", special, added: new Map() });
}

// The tokenizer of a GGUF file, out of the metadata at its head. It says besides: `special` (Map
// id → name), `start_id` (what a text begins after), `end_ids` (what ends an answer), `names`
// ({bos_token, eos_token}) and `chat_template`; undefined is what the file does not say.
export function tokenizerOfGguf(metadata) {
  const about = (name) => metadata[`tokenizer.ggml.${name}`];
  const check = (name, fits, expected) => {
    const found = Array.isArray(about(name)) ? `a list of ${about(name).length}` : about(name);
    if (!fits(about(name))) {
      throw new Error(`tokenizer.ggml.${name} is ${found}, expected ${expected}`);
    }
    return about(name);
  };
  check("model", (model) => model === "gpt2", "gpt2, which is BPE");
  const known = Object.keys(CUTS);
  const cut = check("pre", (name) => known.includes(name), `one of ${known.join(", ")}`);
  const names = check("tokens", Array.isArray, "a list");
  const n = names.length;
  const kinds = check("token_type", (list) => list?.length === n, `a list of ${n}, one a token`);
  const merges = check("merges", Array.isArray, "a list").map((pair) => pair.split(" "));
  const [bos, eos, eot] = ["bos", "eos", "eot"].map((role) =>
    check(`${role}_token_id`, (id) => id === undefined || id in names, `0 … ${n - 1}`),
  );
  const ofKind = (kind) => new Map([...names.entries()].filter(([id]) => kinds[id] === kind));
  const [special, added] = [CONTROL, ADDED].map(ofKind);
  const between = [...special.keys()].find((id) => names[id] === "<|endoftext|>");
  // Without a rule, a text begins after what stands between documents, where there is such a token.
  const start = about("add_bos_token") ? (bos ?? eos) : (between ?? bos ?? eos);
  if (start === undefined) {
    throw new Error(
      "tokenizer.ggml names no token that a text begins after; expected bos_token_id",
    );
  }
  return {
    ...byteLevel({ names, merges, cut, special, added }),
    special,
    start_id: start,
    end_ids: [...new Set([eos, eot])].filter((id) => id !== undefined),
    names: { bos_token: names[bos], eos_token: names[eos] },
    chat_template: metadata["tokenizer.chat_template"],
  };
}

// `names` are those of the tokens, by id. `special` ones are marks between texts: no text encodes
// to one, not even its own name. `added` ones are pieces of text, found before all else is cut.
function byteLevel({ names, merges, cut, special, added }) {
  const idOf = new Map(names.map((name, id) => [name, id]));
  for (const [id, name] of names.entries()) {
    const isPlain = !special.has(id) && !added.has(id);
    if (idOf.get(name) !== id || (isPlain && !BYTE_LEVEL.test(name))) {
      throw new Error(`token ${id} is ${name}, expected byte characters, as no other token has`);
    }
  }
  const merge = createMerges(merges, idOf);
  const idOfByte = BYTE_CHARACTERS.map((character) => idOf.get(character));
  const encoder = new TextEncoder();
  const idsOfWord = (word) => {
    const bytes = Array.from(encoder.encode(word));
    if (cut === "llama-bpe") {
      // Llama 3 has words that no merges lead to.
      const id = idOf.get(bytes.map((byte) => BYTE_CHARACTERS[byte]).join(""));
      if (id !== undefined && !special.has(id)) return id;
    }
    // A byte that the vocabulary lacks is lost.
    return merge(bytes.map((byte) => idOfByte[byte]).filter((id) => id !== undefined));
  };
  const split = splitter(special, added);
  const encode = (text) =>
    split(wellFormed(text)).flatMap((part) =>
      typeof part === "number" ? part : CUTS[cut](part).flatMap(idsOfWord),
    );
  const bytes = (id) => {
    if (!Number.isInteger(id) || !(id in names)) {
      throw new Error(`token id ${id} is outside 0 … ${names.length - 1}`);
    }
    if (special.has(id)) return new Uint8Array();
    if (added.has(id)) return encoder.encode(names[id]);
    return Uint8Array.from(names[id], (character) => BYTE_OF.get(character));
  };
  return {
    encode,
    decode: (ids) => textStream(bytes).all(ids),
    named: (id) => ({ id, piece: special.get(id) ?? shown(bytes(id)) }),
    stream: () => textStream(bytes),
  };
}

// What splits a text into the ids of added tokens and the texts between them. Where a mark is
// spelled, none is looked for within it.
function splitter(special, added) {
  if (!added.size) return (text) => [text];
  const idOf = new Map(Array.from(added, ([id, name]) => [name, id]));
  const any = new RegExp(alternatives([...special.values(), ...added.values()]), "gu");
  return (text) => {
    const parts = [];
    let start = 0;
    for (const { 0: name, index } of text.matchAll(any)) {
      if (!idOf.has(name)) continue;
      parts.push(text.slice(start, index), idOf.get(name));
      start = index + name.length;
    }
    return [...parts, text.slice(start)];
  };
}

// Decode ids one at a time: push(id) gives the text that is certain by now, finish() what is left.
function textStream(bytes) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const push = (id) => decoder.decode(bytes(id), { stream: true });
  const finish = () => decoder.decode();
  return { push, finish, all: (ids) => ids.map(push).join("") + finish() };
}

// The text of one token as a reader sees it: bytes that form no character as \xe2.
function shown(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const beginning = (n) => {
    try {
      return decoder.decode(bytes.subarray(0, n));
    } catch {
      return undefined;
    }
  };
  let text = "";
  while (bytes.length) {
    const n = [1, 2, 3, 4].find((n) => beginning(n) !== undefined);
    text += n ? beginning(n) : `\\x${bytes[0].toString(16)}`;
    bytes = bytes.subarray(n ?? 1);
  }
  return text;
}

// Unpaired surrogates become U+FFFD.
function wellFormed(text) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new TextEncoder().encode(text));
}

// The printable character that stands for each byte in a byte-level vocabulary: printable Latin-1
// for itself, the others for the characters from U+0100 on (openai/gpt-2, bytes_to_unicode).
const BYTE_CHARACTERS = byteCharacters();
const BYTE_OF = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));
const BYTE_LEVEL = /^[!-~¡-¬®-\u0143]*$/;

function byteCharacters() {
  let substitute = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
    return String.fromCharCode(printable ? byte : substitute++);
  });
}
