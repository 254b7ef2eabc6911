// The mock interview: questions drawn by topic, a clock, and at the end the score and what to read.
// What is under way is kept as localStorage["first-token"].interview:
// {ids, at, answers: {id: {text, ticked}}, spent_s, clock, over}.

// Mulberry32: the same numbers from the same seed, on every machine.
const randomFrom = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let x = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
  return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
};

const shuffled = (items, random) => {
  for (let i = items.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [items[i], items[j]] = [items[j], items[i]];
  }
  return items;
};

// As draw.py draws: every chapter gives one before any gives a second, and the easy ones come first.
const drawFrom = (cards, n, random) => {
  const chapters = shuffled([...new Set(cards.map((card) => card.dataset.chapter))], random);
  const decks = chapters.map((chapter) =>
    shuffled(
      cards.filter((card) => card.dataset.chapter === chapter),
      random,
    ),
  );
  const found = [];
  for (let i = 0; decks.some((deck) => i < deck.length); i += 1) {
    found.push(...decks.filter((deck) => i < deck.length).map((deck) => deck[i]));
  }
  return found.slice(0, n).sort((a, b) => a.dataset.level - b.dataset.level);
};

const clockText = (seconds) => {
  const whole = Math.floor(Math.abs(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
};
const pointsText = (points, n) => `${Number(points.toFixed(2))} of ${n}`;

const SAVE_EACH_MS = 15_000;

each(".ft-interview", (root) => {
  const find = (name) => root.querySelector(name);
  const { n: most, minutes } = JSON.parse(root.dataset.interview);
  const cards = [...find(".ft-pool").content.children];
  const cardOf = new Map(cards.map((card) => [card.dataset.question, card]));
  const [setup, run, stage, report] = [".ft-setup", ".ft-run", ".ft-stage", ".ft-report"].map(find);
  let state = null;
  let since = 0; // when the time that is not in state.spent_s began
  let saved = 0;

  const spent = () => state.spent_s + (state.over ? 0 : (performance.now() - since) / 1000);
  const save = () => {
    if (state && !state.over) [state.spent_s, since] = [spent(), performance.now()];
    saved = performance.now();
    const all = kept();
    if (all) store({ ...all, interview: state ?? undefined });
  };

  // Questions shown here are copies; the other scripts of the page leave them alone.
  const quizOf = (id) => {
    const quiz = cardOf.get(id).querySelector(".ft-quiz").cloneNode(true);
    quiz.dataset.ready = "true";
    return quiz;
  };
  const textField = (quiz) => quiz.querySelector("textarea, input[type=text]");
  const read = (quiz) => ({ text: textField(quiz)?.value ?? "", ticked: ticked(quiz) });
  const fill = (quiz, answer) => {
    if (textField(quiz)) textField(quiz).value = answer?.text ?? "";
    for (const box of quiz.querySelectorAll("input:not([type=text])")) {
      box.checked = answer?.ticked.includes(Number(box.value)) ?? false;
    }
  };
  const hold = () => {
    const quiz = stage.querySelector(".ft-quiz");
    if (quiz && !state.over) state.answers[quiz.dataset.question] = read(quiz);
  };

  // Before.
  const chosen = (name) =>
    [...setup.querySelectorAll(`[name=${name}]:checked`)].map((box) => box.value);
  const matching = () => {
    const [chapters, levels] = [chosen("chapter"), chosen("level")];
    return cards.filter(
      ({ dataset }) => chapters.includes(dataset.chapter) && levels.includes(dataset.level),
    );
  };
  const count = () => {
    const n = matching().length;
    const drawn =
      n > most
        ? `${most} of them are drawn.`
        : n
          ? "All of them are asked."
          : "Choose more topics.";
    find(".ft-matching").textContent =
      `${n} question${n === 1 ? "" : "s"} to choose from. ${drawn}`;
    find(".ft-start").disabled = n === 0;
  };
  const tickAll = (yes) => {
    for (const box of setup.querySelectorAll("[name=chapter]")) box.checked = yes;
    count();
  };
  setup.addEventListener("change", count);
  find(".ft-all").addEventListener("click", () => tickAll(true));
  find(".ft-none").addEventListener("click", () => tickAll(false));
  setup.addEventListener("submit", (event) => {
    event.preventDefault();
    const drawn = drawFrom(matching(), most, randomFrom(Date.now()));
    const ids = drawn.map((card) => card.dataset.question);
    state = { ids, at: 0, answers: {}, spent_s: 0, clock: true, over: false };
    since = performance.now();
    draw(true);
    save();
  });

  // During.
  const tick = () => {
    if (!root.isConnected || !state || state.over) return;
    const levels = state.ids.map((id) => cardOf.get(id).dataset.level);
    const left = levels.reduce((sum, level) => sum + 60 * minutes[level], 0) - spent();
    find(".ft-time").textContent =
      left >= 0 ? `${clockText(left)} left` : `${clockText(left)} over time`;
    if (performance.now() - saved > SAVE_EACH_MS) save();
  };
  const drawClock = () => {
    find(".ft-time").hidden = !state.clock;
    find(".ft-clock-switch").textContent = state.clock ? "Hide the clock" : "Show the clock";
  };
  const drawQuestion = () => {
    const id = state.ids[state.at];
    const { label, level } = cardOf.get(id).dataset;
    const quiz = quizOf(id);
    quiz.dataset.question = id;
    fill(quiz, state.answers[id]);
    const rubric = quiz.querySelector(".ft-rubric");
    if (rubric) rubric.hidden = true; // it holds the answer
    const answer = quiz.querySelector(".ft-answer");
    if (answer) answer.hidden = true;
    const form = quiz.querySelector("form");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      step(1);
    });
    // In a text field JupyterLab keeps the browser from submitting on Enter.
    form.querySelector("input[type=text]")?.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      step(1);
    });
    form.addEventListener("change", () => {
      hold();
      save();
    });
    stage.replaceChildren(quiz);
    find(".ft-where").textContent =
      `Question ${state.at + 1} of ${state.ids.length}. ${label}, difficulty ${level}`;
    find(".ft-back").disabled = state.at === 0;
    find(".ft-next").textContent = state.at + 1 < state.ids.length ? "Next" : "Finish";
  };
  const step = (by) => {
    if (state.at + by === state.ids.length) return end();
    hold();
    state.at += by;
    save();
    draw(true);
  };
  const end = () => {
    hold();
    state.spent_s = spent();
    state.over = true;
    save();
    draw(true);
  };
  find(".ft-back").addEventListener("click", () => step(-1));
  find(".ft-next").addEventListener("click", () => step(1));
  find(".ft-end").addEventListener("click", end);
  find(".ft-clock-switch").addEventListener("click", () => {
    state.clock = !state.clock;
    drawClock();
    save();
  });

  // After.
  const shareOf = (quiz) => {
    const spec = JSON.parse(quiz.dataset.quiz);
    const form = quiz.querySelector("form");
    if (spec.kind === "rubric") return ticked(form).length / (spec.counts.length - 1);
    return graders[spec.kind](spec, form)[0] === "right" ? 1 : 0;
  };
  // A row of the answers: the question as it was answered, its verdict, and the model answer.
  const answered = (id, i) => {
    const quiz = quizOf(id);
    const given = state.answers[id];
    const row = document.createElement("details");
    row.dataset.question = id;
    row.append(document.createElement("summary"), quiz);
    find(".ft-answers").append(row);
    fill(quiz, given);
    startQuiz(quiz);
    const form = quiz.querySelector("form");
    const rubric = quiz.querySelector(".ft-rubric");
    if (rubric) {
      textField(quiz).readOnly = true;
      rubric.open = true;
      form.addEventListener("change", () => {
        state.answers[id] = read(quiz);
        drawScore();
        save();
      });
    }
    if (rubric ? ticked(quiz).length : given && (given.text || given.ticked.length))
      form.requestSubmit();
    else if (!rubric) {
      const none = document.createElement("p");
      none.className = "ft-unanswered";
      none.textContent = "Not answered.";
      form.after(none);
    }
    if (!rubric) {
      form.querySelector("fieldset").disabled = true;
      form.querySelector("button").hidden = true;
      const answer = quiz.querySelector(".ft-answer");
      [answer.hidden, answer.open] = [false, true];
    }
    row.open = shareOf(quiz) < 1;
    row.dataset.title = `Question ${i + 1}. ${cardOf.get(id).dataset.label}`;
  };
  const drawScore = () => {
    const topics = new Map();
    for (const row of find(".ft-answers").children) {
      const { chapter, label } = cardOf.get(row.dataset.question).dataset;
      const topic = topics.get(chapter) ?? { label, n: 0, points: 0, missed: [] };
      const share = shareOf(row.querySelector(".ft-quiz"));
      topic.n += 1;
      topic.points += share;
      if (share < 1) topic.missed.push(row.dataset.question);
      topics.set(chapter, topic);
      const sign = share === 1 ? "✓" : share ? "½" : "✗";
      row.querySelector("summary").textContent =
        `${sign} ${row.dataset.title}: ${pointsText(share, 1)}`;
    }
    const rows = [...topics].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, topic]) => topic);
    // Two questions may be taught in one section, which is named once.
    const links = ({ missed }) => {
      const places = missed.map((id) => find(`.ft-reading [data-question="${CSS.escape(id)}"]`));
      const sections = new Map(places.map((place) => [place.textContent, place]));
      return [...sections.values()].map((place) => copy(place).firstChild);
    };
    find("tbody").replaceChildren(
      ...rows.map((topic) => {
        const row = document.createElement("tr");
        const [name, points, reading] = ["th", "td", "td"].map((kind) =>
          document.createElement(kind),
        );
        name.scope = "row";
        name.textContent = topic.label;
        points.textContent = pointsText(topic.points, topic.n);
        reading.append(...links(topic));
        row.append(name, points, reading);
        return row;
      }),
    );
    const total = rows.reduce((sum, topic) => sum + topic.points, 0);
    find(".ft-result").textContent = `Your score: ${pointsText(total, state.ids.length)}`;
  };
  const drawReport = () => {
    find(".ft-answers").replaceChildren();
    state.ids.forEach(answered);
    drawScore();
    find(".ft-used").textContent =
      `Time: ${clockText(state.spent_s)}. Explanations count as soon as you tick their points below.`;
  };
  find(".ft-again").addEventListener("click", () => {
    state = null;
    save();
    draw(true);
  });

  const draw = (focus) => {
    if (state?.over) drawReport();
    else if (state) {
      drawQuestion();
      drawClock();
      tick();
    } else count();
    // Filled while hidden: a screen reader is told the heading, not ten verdicts.
    setup.hidden = Boolean(state);
    run.hidden = !state || state.over;
    report.hidden = !state?.over;
    if (focus)
      (state?.over ? find(".ft-result") : state ? find(".ft-where") : find(".ft-start")).focus();
  };
  find(".ft-off").hidden = true;
  const before = kept()?.interview;
  // Questions that a newer book does not have cannot be asked again.
  if (before?.ids?.every((id) => cardOf.has(id))) state = before;
  since = saved = performance.now();
  draw(false);
  setInterval(tick, 1000);
  // A page that comes back from the browser's memory was not open in between.
  addEventListener("pageshow", () => {
    since = performance.now();
  });
  addEventListener("pagehide", () => {
    if (!root.isConnected || !state || state.over) return;
    hold();
    save();
  });
});
