// What a reader has solved. The browser keeps it on the reader's own machine and nothing is sent:
// localStorage["first-token"] holds {version, tasks: {chapter: {task: {right, at}}}, placement: {chapter, at}},
// and the mock interview that interview.js keeps there.
const KEY = "first-token";

// Return what is kept, or null where the browser keeps nothing for this page.
const kept = () => {
  let found = null;
  try {
    found = localStorage.getItem(KEY);
  } catch {
    return null;
  }
  try {
    found = JSON.parse(found);
  } catch {
    found = null;
  }
  return found?.version === 1 && found.tasks?.constructor === Object ? found : { version: 1, tasks: {} };
};

// Tell this page; the browser itself tells the others, by the event "storage".
const store = (all) => {
  try {
    if (all) localStorage.setItem(KEY, JSON.stringify(all));
    else localStorage.removeItem(KEY);
  } catch {
    // Full or forbidden: the page works without.
  }
  document.dispatchEvent(new Event(KEY));
};

const watch = (draw) => {
  draw();
  document.addEventListener(KEY, draw);
  addEventListener("storage", draw);
};

const now = () => new Date().toISOString();
const day = (at) => new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });

// The last match, since a folder above may be numbered, too.
const chapterOf = (root) => (root.dataset.page || location.pathname).match(/.*(\d\d_[a-z_]+)/)?.[1] ?? "other";

const record = (root, task, right) => {
  const all = kept();
  if (!all) return;
  const tasks = (all.tasks[chapterOf(root)] ??= {});
  if (tasks[task]?.right) return;
  tasks[task] = { right, at: now() };
  store(all);
};

const place = (chapter) => {
  const all = kept();
  if (all) store({ ...all, placement: { chapter, at: now() } });
};

const ON_SITE = "content_root" in document.documentElement.dataset;

// JupyterLab opens a notebook only from the very link that came with an output: a copy passes its click on.
const copy = (node) => {
  const twin = node.cloneNode(true);
  const links = node.querySelectorAll("a");
  for (const [i, link] of ON_SITE ? [] : twin.querySelectorAll("a").entries()) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      links[i].click();
    });
  }
  return twin;
};

// Run once for each output of a kind.
const each = (kind, start) => {
  for (const root of document.querySelectorAll(`${kind}:not([data-ready])`)) {
    root.dataset.ready = "true";
    // The links lead to notebooks; on the site these are pages, whose sections have other names.
    for (const link of ON_SITE ? root.querySelectorAll("a[href*='.ipynb']") : []) {
      link.setAttribute("href", link.dataset.page ?? link.getAttribute("href").replace(/ipynb$/, "html"));
    }
    start(root);
  }
};

each(".ft-right[data-task]", (root) => record(root, root.dataset.task, true));
