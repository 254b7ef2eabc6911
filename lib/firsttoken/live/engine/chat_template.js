// Chats as a model reads them, by the template that its file brings: as firsttoken.models.chat does it.
import { alternatives } from "./alternatives.js";
import { createTemplate, SPACE } from "./jinja.js";

// Unicode keeps these for programs' own use: no text holds them.
const NONCHARACTERS = Array.from({ length: 32 }, (_, i) => String.fromCharCode(0xfdd0 + i));
const BEFORE_CHARACTER = new RegExp(`(?=[^${SPACE}])`, "gu");

// {encode, parts}: the ids of a conversation, and the text of such ids with the marks by themselves.
export function createChatTemplate(source, tokenizer) {
  const render = createTemplate(source);
  const idOf = new Map(Array.from(tokenizer.special, ([id, name]) => [name, id]));
  const names = [...idOf.keys()];
  const cut = names.flatMap((name) => {
    const characters = Array.from(name);
    return characters.slice(1).map((_, i) => [characters.slice(0, i + 1), characters.slice(i + 1)]);
  });
  const [beginnings, ends] = [0, 1].map((half) => alternatives(cut.map((c) => c[half].join(""))));
  const marks = alternatives(names);
  // A mark, and parts of one at the ends, which a neighbour completes; a template may trim spaces.
  const patterns = [marks, `(?:${beginnings})(?=[${SPACE}]*$)`, `^[${SPACE}]*(?:${ends})`];
  const spelled = patterns.map((pattern) => new RegExp(pattern, "gu"));

  // Only the template writes marks. A message that spells one, <|im_end|>, would otherwise end
  // itself and begin another one, in anybody's name: it is encoded as the characters it consists of.
  function encode(messages, addGenerationPrompt = true) {
    check(messages);
    const texts = JSON.stringify(messages);
    const guard = NONCHARACTERS.find((character) => !texts.includes(character));
    if (guard === undefined) {
      throw new Error("messages must leave one of U+FDD0 … U+FDEF unused, got all of them");
    }
    // What begins behind a guard is no mark.
    const guarded = (value) => {
      if (Array.isArray(value)) return value.map(guarded);
      if (value instanceof Object) {
        return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, guarded(each)]));
      }
      if (typeof value !== "string") return value;
      const protect = (found) => found.replace(BEFORE_CHARACTER, guard);
      return spelled.reduce((text, pattern) => text.replace(pattern, protect), value);
    };
    const text = render({
      ...tokenizer.names,
      messages: messages.map(guarded),
      add_generation_prompt: addGenerationPrompt,
    });
    const plain = (start, end) => tokenizer.encode(text.slice(start, end).replaceAll(guard, ""));
    const ids = [];
    let start = 0;
    for (const { 0: name, index } of text.matchAll(new RegExp(`(?<!${guard})(?:${marks})`, "gu"))) {
      ids.push(plain(start, index), idOf.get(name));
      start = index + name.length;
    }
    return [...ids, plain(start)].flat();
  }

  function parts(ids) {
    const found = [];
    let run = [];
    const end = () => {
      if (run.length) found.push([tokenizer.decode(run), false]);
      run = [];
    };
    for (const id of ids) {
      if (tokenizer.special.has(id)) {
        end();
        found.push([tokenizer.special.get(id), true]);
      } else {
        run.push(id);
      }
    }
    end();
    return found;
  }

  return { encode, parts };
}

function check(messages) {
  const fits = (message) => message instanceof Object && "role" in message;
  if (!Array.isArray(messages) || !messages.length || !messages.every(fits)) {
    const got = JSON.stringify(messages);
    throw new Error(`messages must be objects with a role, at least one; got ${got}`);
  }
}
