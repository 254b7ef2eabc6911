// Chapters 12 and 13: a text coloured by what became of the draft's guesses, and a race against plain
// decoding that shows where the time of a round goes.
import { DRAFTS } from "./drafts.js";
import { button, enable, make, menu, numberField, painter, pieceNodes } from "./parts.js";
import { slider, status, textField, toggle } from "./parts.js";
import { compared, counted, expectedOver, roundTimes } from "./rounds.js";
import { count, figure, figures, legend, plural, rateBars, short, writtenText } from "./writing.js";

export function speculation(root, engine, shared) {
  const { eos_id } = engine.arch("target");
  const given = shared.get();
  let rounds = [];
  let plain; // plain decoding of the same text: {key, ids, steps}
  let handle; // of what is being written
  let busy = false;
  let stopped = false;
  let shown = { draft: given.draft, gamma: given.gamma }; // those of the rounds

  const text = textField("Your text", given.text, (words) => shared.set({ text: words }));
  const draft = menu("Draft", DRAFTS, given.draft, (name) => shared.set({ draft: name }));
  const gamma = slider("Guesses per round, γ", { min: 1, max: 8, value: given.gamma }, (value) =>
    shared.set({ gamma: value }),
  );
  const temperature = slider(
    "Temperature",
    { min: 0, max: 2, step: 0.1, value: given.temperature, format: (x) => x.toFixed(1) },
    (value) => shared.set({ temperature: value }),
  );
  const seed = numberField("Seed", { min: 0, max: 2 ** 32 - 1, value: given.seed }, (value) =>
    shared.set({ seed: value }),
  );
  const write = button("Write", () => press(write, speculate), { primary: true });
  const race = button("Race plain decoding", () => press(race, raceBoth));
  const news = status();
  const output = colouredText();
  const track = roundTrack();
  const numbers = countedFigures();
  const clock = clockPanel();
  const results = make(
    "div",
    { class: "ft-results", hidden: true },
    output.element,
    track.element,
    numbers.element,
    clock.element,
  );
  root.append(
    text.element,
    draft.element,
    make("div", { class: "ft-sliders" }, gamma.element, temperature.element),
    make("div", { class: "ft-row" }, write, race, seed.element),
    news.element,
    results,
  );
  const drawAll = () => {
    output.flush();
    track.flush();
    numbers.draw(rounds);
    clock.draw(rounds, shown, plain);
  };
  const paint = painter(drawAll);
  news.show("The draft guesses, and one pass of the target checks all guesses of a round.");

  async function press(pressed, job) {
    if (busy) return stop();
    const other = pressed === write ? race : write;
    const name = pressed.textContent;
    pressed.textContent = "Stop";
    enable(other, false);
    [busy, stopped] = [true, false];
    let outcome;
    try {
      outcome = await job();
    } catch (error) {
      outcome = error.message;
    }
    handle = undefined;
    busy = false;
    pressed.textContent = name;
    enable(other, true);
    drawAll();
    track.describe(rounds);
    news.say(outcome);
  }

  function stop() {
    stopped = true;
    handle?.stop();
  }

  async function asked() {
    const { text: words, temperature: tau, seed: number, max_tokens } = shared.get();
    const { ids } = await engine.tokenize(words);
    const params = { temperature: tau, seed: number };
    return { ids: [eos_id, ...ids], params, max_tokens };
  }

  // Weights come when their draft is to guess, and only then. No clock runs meanwhile.
  async function loadDraft() {
    const { draft: name } = shared.get();
    const megabytes = (bytes) => (bytes / 1e6).toFixed(1);
    await engine.need(name, (loaded, total) => {
      if (loaded < total) news.show(`Loading ${megabytes(loaded)} of ${megabytes(total)} MB.`);
    });
    return name;
  }

  async function speculate() {
    const draftName = await loadDraft();
    const request = await asked();
    if (plain?.key !== JSON.stringify(request)) plain = undefined;
    shown = { draft: draftName, gamma: shared.get().gamma };
    rounds = [];
    results.hidden = false;
    output.begin(shared.get().text, `Draft: ${DRAFTS[shown.draft].name}, γ = ${shown.gamma}`);
    track.begin();
    handle = engine.speculate({ ...request, ...shown }, (round) => {
      rounds.push(round);
      output.add(round);
      track.add(round);
      news.show(`Writing with guesses: ${plural(rounds.length, "round")}.`);
      paint();
    });
    if (stopped) handle.stop();
    await handle.done;
    return summary(rounds, shown, plain);
  }

  async function raceBoth() {
    await loadDraft();
    const request = await asked();
    const run = { key: JSON.stringify(request), ids: [], steps: [] };
    handle = engine.write({ ...request, top: 0 }, ({ id, step_ms }) => {
      run.ids.push(id);
      run.steps.push(step_ms);
      news.show(`First plain decoding: ${run.ids.length} of ${request.max_tokens} tokens.`);
    });
    if (stopped) handle.stop();
    await handle.done;
    if (stopped) return "Stopped.";
    plain = run;
    return speculate();
  }

  shared.onChange((settings) => {
    text.set(settings.text);
    draft.set(settings.draft);
    gamma.set(settings.gamma);
    temperature.set(settings.temperature);
    seed.set(settings.seed);
  });
  return stop;
}

// The text by what became of the guesses; a rejected one is struck through before its replacement.
function colouredText() {
  const text = writtenText(roundSpans);
  const rejected = toggle("Show rejected", true, (on) =>
    text.element.classList.toggle("ft-without-rejected", !on),
  );
  const names = { kept: "guess, kept", replaced: "guess, replaced", bonus: "bonus of the target" };
  const row = make("div", { class: "ft-row" }, legend(names), rejected.element);
  const heading = make("p", { class: "ft-heading" });
  const begin = (prompt, title) => {
    heading.textContent = title;
    text.begin(prompt);
  };
  const element = make("section", { class: "ft-fate" }, heading, row, text.element);
  return { ...text, begin, element };
}

function roundSpans({ tokens, rejected }) {
  return tokens.flatMap(({ text, kind }) => {
    const span = make("span", { class: `ft-token ft-${kind}` }, ...brokenLines(text));
    if (kind !== "replaced") return [span];
    return [make("del", {}, ...pieceNodes(rejected[0].piece)), span];
  });
}

// A newline shows a mark before it breaks the line.
function brokenLines(text) {
  const mark = () => make("span", { class: "ft-invisible" }, "↵");
  return text.split(/(\n)/).flatMap((part) => (part === "\n" ? [mark(), part] : [part]));
}

// A row of boxes per round: guesses that were kept, the one that was rejected, those after it that
// no one looked at, and the target's own token.
function roundTrack() {
  const list = make("div", { class: "ft-rounds", role: "img", "aria-label": "No rounds yet" });
  const names = {
    "box ft-box-kept": "kept",
    "box ft-box-rejected": "rejected",
    "box ft-box-void": "void: guessed after a rejected one",
    "box ft-box-own": "the target's own token",
  };
  const element = make(
    "section",
    {},
    make("p", { class: "ft-heading" }, "Rounds"),
    legend(names),
    list,
  );
  let unseen = [];
  const box = (name) => make("span", { class: `ft-box ft-box-${name}` });
  const boxes = ({ drafted, accepted }) =>
    make(
      "span",
      { class: "ft-round" },
      ...Array.from({ length: drafted }, (_, i) =>
        box(i < accepted ? "kept" : i === accepted ? "rejected" : "void"),
      ),
      box("own"),
    );
  return {
    element,
    begin: () => {
      list.replaceChildren();
      unseen = [];
    },
    add: (round) => unseen.push(round),
    flush: () => {
      list.append(...unseen.map(boxes));
      unseen = [];
    },
    describe: (rounds) => {
      const kept = rounds.map(({ drafted, accepted }) => `${accepted} of ${drafted}`);
      list.setAttribute("aria-label", `Guesses kept, round by round: ${kept.join(", ")}.`);
    },
  };
}

function countedFigures() {
  const names = {
    alpha: "Guesses kept, of those that were looked at: α",
    per_pass: "Tokens per pass of the target, counted",
    formula: "By formula",
  };
  const list = figures(names);
  const draw = (rounds) => {
    const { accepted, looked_at, alpha, tokens, per_pass } = counted(rounds);
    if (alpha === undefined) return Object.keys(names).forEach((key) => list.set(key, "", "–"));
    list.set("alpha", alpha, `${count(accepted)} of ${count(looked_at)}: ${alpha.toFixed(2)}`);
    const each = `${count(tokens)} in ${plural(rounds.length, "pass", "passes")}: `;
    list.set("per_pass", per_pass, each + per_pass.toFixed(2));
    const says = expectedOver(rounds, alpha);
    const alike = rounds.slice(1).every(({ drafted, wanted }) => drafted === wanted);
    const power = make("sup", {}, "γ");
    const own = alike ? "" : ", γ as in each round";
    list.rename("formula", make("span", {}, "By formula, 1 + α + … + α", power, own));
    list.set("formula", says, `${says.toFixed(2)} (${signedPercent(says / per_pass - 1)})`);
  };
  return { element: list.element, draw };
}

function signedPercent(share) {
  const percent = (100 * Math.abs(share)).toFixed(1);
  return `${share < 0 && Number(percent) ? "−" : "+"}${percent} %`;
}

// Tokens per second of both, where the time of a round goes, and what the formula makes of it.
function clockPanel() {
  const bars = rateBars({ plain: "plain decoding", drafted: "speculation" });
  const verdict = make("p", { class: "ft-verdict" });
  const parts = { draft: "drafting", check: "checking" };
  const shares = Object.keys(parts).map((name) => make("span", { class: `ft-${name}` }));
  const split = make("div", { class: "ft-split", "aria-hidden": "true" }, ...shares);
  const took = { draft: figure("draft"), check: figure("check") };
  const round = legend(parts, { draft: took.draft.element, check: took.check.element });
  const costs = figures({
    step: "A step of plain decoding",
    draft_cost: "",
    check_cost: "",
    predicted: "Speed-up by formula, from α, c and v",
    measured: "Speed-up, measured",
    with_free_check: "By formula, if a check cost one step",
  });
  const words =
    "v is near 1 where reading the weights sets the pace, as for one reader on a GPU, and nears " +
    "γ + 1 where arithmetic does.";
  const why = make("p", { class: "ft-note" }, words);
  const element = make(
    "section",
    { class: "ft-clock" },
    make("p", { class: "ft-heading" }, "The clock: the model's time, drawing left out"),
    bars.element,
    verdict,
    make("p", {}, "Where the time of a typical round goes:"),
    split,
    round,
    costs.element,
    why,
  );
  const draw = (rounds, shown, plain) => {
    const times = roundTimes(rounds);
    const race = plain && compared(rounds, shown.gamma, plain);
    element.hidden = !times;
    costs.element.hidden = why.hidden = !race;
    bars.draw({ plain: race?.plain_per_second, drafted: times?.per_second });
    verdict.textContent = race ? verdictOf(race, shown.draft) : "";
    if (times) drawRound(times);
    if (race) drawCosts(race, shown);
  };
  const drawRound = (times) => {
    for (const [i, name] of Object.keys(parts).entries()) {
      const value = times[`${name}_ms`];
      shares[i].style.flexGrow = value;
      took[name].set(value, `${short(value)} ms`);
    }
  };
  const drawCosts = (race, { draft, gamma }) => {
    const { draft_cost: c, check_cost: v, guesses } = race;
    const written = (x) => (Number.isInteger(x) ? x : x.toFixed(1));
    const times = `${written(guesses)} · ${short(c)}`;
    const fraction = `${race.tokens.toFixed(2)} / (${times} + ${short(v)})`;
    const [first, ...rest] = DRAFTS[draft].step;
    costs.rename("draft_cost", `${first.toUpperCase()}${rest.join("")}, in such steps: c`);
    const size = guesses === gamma ? "γ + 1 tokens" : `${written(guesses + 1)} tokens on average`;
    costs.rename("check_cost", `A check of ${size}, in such steps: v`);
    costs.set("step", race.step_ms, `${short(race.step_ms)} ms`);
    costs.set("draft_cost", c, short(c));
    costs.set("check_cost", v, short(v));
    costs.set("predicted", race.predicted, `${fraction} = ${short(race.predicted)}`);
    costs.set("measured", race.measured, short(race.measured));
    costs.set("with_free_check", race.with_free_check, short(race.with_free_check));
  };
  return { element, draw };
}

function verdictOf({ measured, draft_cost, check_cost }, draft) {
  const verdict = `${short(measured)} times as fast as plain decoding`;
  const cost = draft_cost < 0.005 ? "next to nothing" : `${short(draft_cost)} steps`;
  const costs = `${DRAFTS[draft].step} costs ${cost}, a check ${short(check_cost)} steps`;
  return `${verdict}; ${costs}.`;
}

function summary(rounds, { draft, gamma }, plain) {
  const { per_pass, tokens } = counted(rounds);
  if (!rounds.length) return "Stopped before the end of the first round.";
  const passes = `${plural(tokens, "token")} in ${plural(rounds.length, "pass", "passes")}`;
  const words = `${passes} of the target, ${per_pass.toFixed(2)} per pass.`;
  const race = plain && compared(rounds, gamma, plain);
  if (!race && plain) return `${words} ${textsOf(rounds, plain)}`;
  if (!race) return `${words} Race plain decoding to see the clock.`;
  return `${words} ${verdictOf(race, draft)} ${textsOf(rounds, plain)}`;
}

function textsOf(rounds, { ids }) {
  const drafted = rounds.flatMap((round) => round.tokens.map(({ id }) => id));
  const same = drafted.every((id, i) => id === ids[i]);
  return same ? "Both texts are the same." : "The texts differ: other random numbers were drawn.";
}
