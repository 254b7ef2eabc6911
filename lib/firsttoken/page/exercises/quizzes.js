// Grades the quizzes of the page it stands in. The rules are those of quizzes.py and typed_numbers.py,
// which also compute every number and message; tests/exercises/test_quizzes.py holds them together.
const BLANK = "[ \\t\\n\\r\\u00a0\\u202f]*";
const NUMBER = new RegExp(
  `^${BLANK}([+-]?)([0-9]{1,3}(?:[,_ \\u00a0\\u202f][0-9]{3})+(?![0-9])|[0-9]+|(?=\\.[0-9]))` +
    `((?:\\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)${BLANK}([^]*?)${BLANK}$`,
);

const valueOf = (parts) => Number(parts[1] + parts[2].replace(/[^0-9]/g, "") + parts[3]);
const within = (x, value, rtol, atol) => Math.abs(x - value) <= atol + rtol * Math.abs(value);

// Each grader returns [verdict, indices of the messages to show].
const gradeNumber = (quiz, text) => {
  if (new RegExp(`^${BLANK}$`).test(text)) return ["open", [quiz.empty]];
  const parts = NUMBER.exec(text.replace(/\u2212/g, "-"));
  if (!parts || /^[0-9.,_]/.test(parts[4])) return ["open", [quiz.unreadable]];
  let [number, unit] = [valueOf(parts), parts[4]];
  const below = unit.startsWith("/") ? NUMBER.exec(unit.slice(1)) : null;
  if (below) {  // a quotient, as "2/3"
    if (valueOf(below) === 0 || /^[0-9.,_]/.test(below[4])) return ["open", [quiz.unreadable]];
    [number, unit] = [number / valueOf(below), below[4]];
  }
  if (unit && !Object.hasOwn(quiz.units, unit)) return ["open", [quiz.unknown_unit]];
  const x = unit ? number * quiz.units[unit] : number;
  if (!Number.isFinite(x)) return ["open", [quiz.unreadable]];
  if (within(x, quiz.expected, quiz.rtol, quiz.atol)) return ["right", quiz.right];
  if (quiz.guesses[0] <= x && x <= quiz.guesses[1]) return ["right", quiz.good_guess];
  const listed = (rtol, atol) => quiz.mistakes.find(([value]) => within(x, value, rtol, atol));
  const mistake =
    listed(quiz.exact, 0) ??
    (quiz.roundings.includes(x) ? [x, quiz.directions.rounded] : listed(quiz.near_mistake, quiz.atol));
  if (mistake) return ["wrong", [...quiz.not_yet, mistake[1]]];
  let best = null;
  let distance = quiz.near;
  for (const [value, message] of quiz.diagnoses) {
    const d = Math.abs(x - value) / Math.abs(value);
    if (d < distance) [best, distance] = [message, d];
  }
  if (best !== null) return ["wrong", [...quiz.not_yet, best]];
  const e = quiz.expected;
  let direction;
  if (Math.abs(x - e) <= quiz.almost * Math.abs(e)) direction = "almost";
  else if ((x < 0 && e > 0) || (x > 0 && e < 0)) direction = "sign";
  else if (Math.abs(x) > Math.abs(e)) direction = Math.abs(x) > 10 * Math.abs(e) && e !== 0 ? "far_large" : "large";
  else direction = Math.abs(x) < Math.abs(e) / 10 ? "far_small" : "small";
  return ["wrong", [...quiz.not_yet, quiz.directions[direction]]];
};

const gradeChoice = (quiz, chosen) => {
  if (chosen.length === 0) return ["open", [quiz.empty]];
  const wrong = chosen.filter((i) => !quiz.answers.includes(i));
  const missing = quiz.answers.some((i) => !chosen.includes(i));
  const said = (indices) => indices.map((i) => quiz.explain[i]).filter((m) => m !== null);
  if (wrong.length === 0 && !missing) return ["right", [quiz.right, ...said(chosen)]];
  const more = missing && quiz.several ? [quiz.missing] : [];
  return ["wrong", [quiz.not_yet, ...said(wrong), ...more]];
};

// The chapter to start with is the first in the book whose question was missed.
const gradePlacement = (quiz, chosen) => {
  const verdicts = quiz.questions.map((question, i) => gradeChoice(question, chosen[i])[0]);
  const open = quiz.open.filter((_, i) => verdicts[i] === "open");
  if (open.length) return ["open", open];
  const lines = quiz.lines.map((line, i) => line[verdicts[i]]);
  const missed = quiz.order.find((i) => verdicts[i] === "wrong");
  if (missed === undefined) return ["right", [quiz.start[""], ...lines], ""];
  const chapter = quiz.chapters[missed];
  return ["placed", [quiz.start[chapter], ...lines], chapter];
};

// The reader grades an explanation: each point that it has counts the same.
const gradeRubric = (quiz, chosen) => {
  const verdict = chosen.length === 0 ? "open" : chosen.length === quiz.counts.length - 1 ? "right" : "partly";
  return [verdict, [quiz.counts[chosen.length]]];
};

const ticked = (node) => [...node.querySelectorAll("input:checked")].map((input) => Number(input.value));
const graders = {
  number: (quiz, form) => gradeNumber(quiz, form.querySelector("input").value),
  choice: (quiz, form) => gradeChoice(quiz, ticked(form)),
  rubric: (quiz, form) => gradeRubric(quiz, ticked(form)),
  placement: (quiz, form) => gradePlacement(quiz, [...form.querySelectorAll("fieldset fieldset")].map(ticked)),
};

const startQuiz = (root) => {
  const quiz = JSON.parse(root.dataset.quiz);
  const form = root.querySelector("form");
  const feedback = root.querySelector(".ft-feedback");
  const messages = root.querySelector(".ft-messages").children;
  const icons = { right: "✓", wrong: "✗", open: "…", placed: "→", partly: "½" };
  const placement = quiz.kind === "placement";
  const rubric = quiz.kind === "rubric";
  const answer = root.querySelector(".ft-answer");
  const offer = (missed) => {
    if (answer) [answer.hidden, answer.open] = [!missed, false];
  };
  let answered = false;
  // Copies of what is in the page already: its mathematics is typeset.
  const copies = (shown) => shown.flatMap((i) => [copy(messages[i]), " "]);

  form.querySelector("button").hidden = rubric;
  offer(false);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    answered = true;
    const [verdict, shown, chapter] = graders[quiz.kind](quiz, form);
    const icon = document.createElement("span");
    icon.className = "ft-icon";
    icon.ariaHidden = "true";
    icon.textContent = icons[verdict];
    const text = document.createElement("div");
    text.append(...copies(shown));
    feedback.className = `ft-feedback ft-verdict ft-${verdict}`;
    feedback.replaceChildren(icon, text);
    offer(verdict === "wrong");
    draw();
    if (verdict === "open") return;
    if (placement) place(chapter);
    else record(root, root.dataset.quizId, verdict === "right");
  });
  // In a text field JupyterLab keeps the browser from submitting on Enter.
  form.querySelector("input[type=text]")?.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  // A verdict belongs to the answer that was checked.
  form.addEventListener("input", () => {
    feedback.replaceChildren();
    offer(false);
  });
  // Ticking a point is the whole check of an explanation.
  form.addEventListener("change", (event) => {
    if (rubric && event.target.type === "checkbox") form.requestSubmit();
  });

  // What was answered on an earlier visit; the answer itself is not shown.
  const note = root.querySelector(".ft-before");
  const draw = () => {
    const all = kept();
    const before = placement ? all?.placement : all?.tasks[chapterOf(root)]?.[root.dataset.quizId];
    note.hidden = answered || !(placement ? before?.chapter in quiz.start : before?.right);
    if (note.hidden) return;
    const text = placement ? `Taken before, on ${day(before.at)}. ` : `✓ Solved before, on ${day(before.at)}`;
    note.replaceChildren(text, ...copies(placement ? [quiz.start[before.chapter]] : []));
  };
  watch(draw);
};

each(".ft-quiz", startQuiz);
