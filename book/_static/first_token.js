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

// Further parts are closed as the page arrives, before a reader sees them. An address that leads
// into one, a search that only it answers, and paper open it.
{
  const PART = "details.ft-further";
  const arrivals = new MutationObserver((changes) => {
    for (const { addedNodes } of changes) {
      for (const node of addedNodes) if (node.matches?.(PART)) node.open = false;
    }
  });
  arrivals.observe(document, { childList: true, subtree: true });

  const searched = () => {
    const query = /\/search\.html(\?.*)/.exec(document.referrer)?.[1];
    const given = new URLSearchParams(location.search).get("highlight");
    const words = given ?? new URLSearchParams(query).get("q") ?? "";
    return words.toLowerCase().split(/\s+/).filter(Boolean);
  };
  const openSearched = () => {
    const inSight = document.querySelector("article")?.innerText.toLowerCase() ?? "";
    const hidden = searched().filter((word) => !inSight.includes(word));
    for (const part of document.querySelectorAll(PART)) {
      const text = part.textContent.toLowerCase();
      if (hidden.some((word) => text.includes(word))) part.open = true;
    }
  };

  const openTarget = () => {
    const target = document.getElementById(location.hash.slice(1));
    // The address of a part is that of the section around it.
    const part = target?.querySelector(`:scope > ${PART}`) ?? target?.closest(PART);
    if (!part) return;
    part.open = true;
    target.scrollIntoView();
  };
  document.addEventListener("DOMContentLoaded", () => {
    arrivals.disconnect();
    openSearched();
    openTarget();
  });
  addEventListener("hashchange", openTarget);

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = document.querySelectorAll(`${PART}:not([open])`);
    for (const part of closed) part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of closed) part.open = false;
  });
}

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
// So must it reach wide code: the theme looks at it once, when it may be in a part still closed.
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  const sizes = new ResizeObserver((changes) => {
    for (const { target } of changes) {
      target.removeAttribute("tabindex");
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    }
  });
  for (const wide of document.querySelectorAll('mjx-container[display="true"], article pre')) {
    sizes.observe(wide);
  }
});
