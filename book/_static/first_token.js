// The widgets' script calls MathJax 2's queue; the site serves MathJax 3. Whatever is assigned to
// window.MathJax, its settings first and the library later, gets a queue that typesets.
(() => {
  let mathjax;
  const Queue = (...jobs) => {
    for (const job of jobs) {
      const element = Array.isArray(job) ? job[2] : undefined;
      if (element) mathjax?.typesetPromise?.([element]);
    }
  };
  Object.defineProperty(window, "MathJax", {
    configurable: true,
    get: () => mathjax,
    set: (value) => {
      mathjax = value;
      if (value && !value.Hub) value.Hub = { Queue };
    },
  });
})();

// The list of references is marked as a list without items, which screen readers announce as empty.
document.addEventListener("DOMContentLoaded", () => {
  for (const list of document.querySelectorAll(".citation-list[role=list]")) {
    list.removeAttribute("role");
  }
});

// Paper is white: a page in the dark theme is printed in the light one.
{
  const root = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = theme;
  });
}
