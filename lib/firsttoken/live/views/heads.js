// All heads of the model: how they are named, and a table of buttons that silence them.
import { button, code, make, share, spoken } from "./parts.js";
import { rove } from "./rove.js";

const FULL = 0.05; // a change that has the full colour, unless there is a larger one

export const inLine = ({ layer, head }) => `layer ${layer + 1}, head ${head + 1}`;

export const isSilent = ({ silenced }, layer, head) =>
  silenced.some(([l, h]) => l === layer && h === head);

// "falls from 86.3 % to 33.4 %"
export function pathOf(change) {
  const [before, after] = [share(change.before), share(change.after)];
  if (before === after) return `stays at ${after}`;
  return `${change.after < change.before ? "falls" : "rises"} from ${before} to ${after}`;
}

const difference = ({ before, after }) => after - before;

// In percentage points: "−53".
function points(change) {
  const n = Math.round(100 * difference(change));
  return n > 0 ? `+${n}` : n < 0 ? `−${-n}` : "0";
}

// A row for each layer, a column for each head, and beside each layer what the model would say if
// it ended there. Heads that were tried show what they change for the token `piece`: `changes` are
// {before, after} by the head's number. If there are `sinks`, by the same number, heads show these
// instead: the share that goes to the start of the text.
export function headTable(arch, onFlip) {
  const buttons = [];
  const words = [];
  const columns = Array.from({ length: arch.n_heads }, (_, head) =>
    make("th", { scope: "col" }, String(head + 1)),
  );
  const body = make("tbody");
  for (let layer = 0; layer < arch.n_layers; layer += 1) {
    const cells = Array.from({ length: arch.n_heads }, (_, head) => {
      const press = button("", () => {
        roving.enter(press);
        onFlip(layer, head);
      });
      press.tabIndex = -1;
      press.setAttribute("aria-label", `Layer ${layer + 1}, head ${head + 1}`);
      buttons.push(press);
      return make("td", {}, press);
    });
    const said = make("td", { class: "ft-said" });
    words.push(said);
    body.append(make("tr", {}, make("th", { scope: "row" }, String(layer + 1)), ...cells, said));
  }
  const corner = make("th", { scope: "col" }, make("span", { class: "ft-spoken" }, "Layer"));
  const header = make(
    "tr",
    {},
    corner,
    ...columns,
    make("th", { scope: "col", class: "ft-said" }, "would say"),
  );
  const token = make("span");
  const meaning = make("span");
  const caption = make(
    "caption",
    {},
    "A row for each layer, a column for each head: press one to silence it. Its number: ",
    meaning,
    " On the right, what the model would say if that layer were its last.",
  );
  const element = make(
    "table",
    { class: "ft-all-heads" },
    caption,
    make("thead", {}, header),
    body,
  );
  const roving = rove(element, buttons);
  roving.enter(buttons[0]);
  return {
    element,
    draw: ({ layer, head, silenced, layers, changes, piece, sinks }) => {
      token.replaceChildren(code(piece));
      meaning.replaceChildren(
        ...(sinks
          ? ["how many percent it takes from the start of the text, on average."]
          : ["by how many percentage points ", token, " changes with that head alone silent."]),
      );
      const sizes = Array.from(changes.values(), (change) => Math.abs(difference(change)));
      const most = Math.max(FULL, ...sizes);
      buttons.forEach((press, index) => {
        const at = Math.floor(index / arch.n_heads);
        const number = index % arch.n_heads;
        press.setAttribute("aria-pressed", String(isSilent({ silenced }, at, number)));
        press.classList.toggle("ft-looked", at === layer && number === head);
        const name = `Silence ${inLine({ layer: at, head: number })}`;
        press.classList.toggle("ft-sink", Boolean(sinks));
        if (sinks) drawSink(press, name, sinks[index]);
        else drawChange(press, name, changes.get(index), most, piece);
      });
      layers.forEach(({ piece, p }, index) => {
        words[index].replaceChildren(code(piece), ` ${share(p)}`);
      });
    },
  };
}

function drawSink(press, name, p) {
  const label = `${name}: ${share(p)} from the start`;
  press.setAttribute("aria-label", label);
  press.title = label;
  press.textContent = Math.round(100 * p);
  press.classList.remove("ft-rises");
  press.style.setProperty("--change", p.toFixed(3));
}

function drawChange(press, name, change, most, piece) {
  const label = change ? `${name}: without it, ${spoken(piece)} ${pathOf(change)}` : name;
  press.setAttribute("aria-label", label);
  press.title = label;
  press.textContent = change ? points(change) : "";
  press.classList.toggle("ft-rises", Boolean(change) && difference(change) > 0);
  const strength = change ? Math.abs(difference(change)) / most : 0;
  press.style.setProperty("--change", strength.toFixed(3));
}
