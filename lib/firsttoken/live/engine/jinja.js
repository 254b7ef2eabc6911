// Templates in Jinja, as transformers runs those of chats. A template is a small program by the makers
// of the model: it reaches what it is given, and nothing else.
import { Environment, Interpreter, parse, tokenize } from "@huggingface/jinja";

export const SPACE = "\\p{White_Space}\\x1c-\\x1f"; // what Python strips, for a class of characters
const ONE_SPACE = new RegExp(`^[${SPACE}]$`, "u");
const MOST_STEPS = 100_000; // of a range, as in Jinja's sandbox
const MOST_MS = 3000; // loops within loops may otherwise never end

// The function that fills a template with what goes by some names.
export function createTemplate(source) {
  let program;
  try {
    program = parse(tokenize(source, { trim_blocks: true, lstrip_blocks: true }));
  } catch (error) {
    throw new Error(`source must be a template in Jinja: ${error.message}`, { cause: error });
  }
  return (given) => {
    const environment = new Environment();
    for (const [name, value] of Object.entries({ ...GLOBALS, ...given })) {
      environment.set(name, value);
    }
    try {
      return new PythonsStrip(environment).run(program).value;
    } catch (error) {
      throw new Error(`messages are refused by the chat template: ${error.message}`, {
        cause: error,
      });
    }
  };
}

// The library's trim and strip take the spaces of JavaScript, whatever a template names: here they
// are Python's.
class PythonsStrip extends Interpreter {
  endMs = performance.now() + MOST_MS;

  evaluate(node, environment) {
    if (performance.now() > this.endMs) throw new Error(`it takes over ${MOST_MS / 1000} seconds`);
    const { type, operand, filter, callee, args = [] } = node ?? {};
    const of = (expression) => this.evaluate(expression, environment).value;
    const strip = (text, ...how) => new Environment().set("stripped", stripped(text, ...how));
    if (type === "FilterExpression" && filter.value === "trim") return strip(of(operand), "strip");
    if (type === "CallExpression" && STRIPS.includes(callee.property?.value)) {
      return strip(of(callee.object), callee.property.value, ...args.map(of));
    }
    return super.evaluate(node, environment);
  }
}

const STRIPS = ["strip", "lstrip", "rstrip"];

function stripped(text, name, characters) {
  if (typeof text !== "string") throw new Error(`${name} is of a text, not of ${text}`);
  const named = typeof characters === "string" && Array.from(characters);
  const goes = (letter) => (named ? named.includes(letter) : ONE_SPACE.test(letter));
  // Not by a pattern: one for the end looks at a run of n spaces within the text n²/2 times.
  const letters = Array.from(text);
  let [start, end] = [0, letters.length];
  if (name !== "rstrip") while (start < end && goes(letters[start])) start += 1;
  if (name !== "lstrip") while (start < end && goes(letters[end - 1])) end -= 1;
  return letters.slice(start, end).join("");
}

// What every template knows, as transformers has it.
const GLOBALS = {
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
  range,
  raise_exception: (message) => {
    throw new Error(message);
  },
  strftime_now: (format) => strftime(new Date(), format),
};

function range(start, stop, step = 1) {
  if (stop === undefined) return range(0, start);
  const n = Math.max(0, Math.ceil((stop - start) / step));
  if (!(n <= MOST_STEPS)) throw new Error(`range(${start}, ${stop}, ${step}) is too long`);
  return Array.from({ length: n }, (_, i) => start + i * step);
}

// In English, whatever language the browser has.
const MONTHS =
  "January February March April May June July August September October November December";

function strftime(date, format) {
  const two = (number) => String(number).padStart(2, "0");
  const month = MONTHS.split(" ")[date.getMonth()];
  const parts = {
    "%Y": date.getFullYear(),
    "%m": two(date.getMonth() + 1),
    "%d": two(date.getDate()),
    "%B": month,
    "%b": month.slice(0, 3),
    "%H": two(date.getHours()),
    "%M": two(date.getMinutes()),
  };
  return format.replace(/%\w/g, (code) => parts[code] ?? code);
}
