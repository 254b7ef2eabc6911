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

// A formula that is wider than the page scrolls by itself; a keyboard must reach it to scroll it.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  const sizes = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      target.removeAttribute("tabindex");
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    }
  });
  for (const formula of document.querySelectorAll('mjx-container[display="true"]')) {
    sizes.observe(formula);
  }
});
