// How texts are cut into words before pairs are merged, under llama.cpp's names: those of
// firsttoken.models.tokenizer.
//
// What is a letter, a number and a space is said here and not left to the browser: so a text has
// the same tokens in every one. Only `normalize` is the browser's, which differs in marks that are
// new in Unicode.
import { LETTERS, NEWER_NUMBERS, NUMBERS } from "./letters.js";

const [LETTER, NUMBER, NEWER] = [LETTERS, NUMBERS, NEWER_NUMBERS].map(characterClass);
const SPACE = "\\p{White_Space}";
const SPACES = `${SPACE}+(?!\\P{White_Space})|${SPACE}+`;
const GPT_2 = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?[${LETTER}]+| ?[${NUMBER}]+| ?[^${SPACE}${LETTER}${NUMBER}]+|${SPACES}`,
  "gu",
);
const DIGIT_OR_MORE = new RegExp(`[${NUMBER}${NEWER}]|[^${NUMBER}${NEWER}]+`, "gu");

// A pattern of GPT-4's kind, which differ in how long a run of digits may be. The long s is an s,
// too, where cases are alike.
function gpt4(digits) {
  return new RegExp(
    `'(?:[sSſtTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\\r\\n${LETTER}${NUMBER}]?[${LETTER}]+` +
      `|[${NUMBER}]${digits}| ?[^${SPACE}${LETTER}${NUMBER}]+[\\r\\n]*|${SPACE}*[\\r\\n]+|${SPACES}`,
    "gu",
  );
}

const cutBy = (pattern) => (text) => text.match(pattern) ?? [];
const byGpt2 = cutBy(GPT_2);
const singleDigits = (text) => cutBy(DIGIT_OR_MORE)(text).flatMap(byGpt2);
const byQwen2 = cutBy(gpt4(""));

export const CUTS = {
  "gpt-2": byGpt2,
  smollm: singleDigits,
  refact: singleDigits, // Granite 3
  qwen2: (text) => byQwen2(text.normalize("NFC")),
  "llama-bpe": cutBy(gpt4("{1,3}")),
};

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
