// A word or letter that the book explains elsewhere shows its meaning beside it. It is a link to
// the glossary; here it becomes a button that shows a card, which is a disclosure: a tooltip must
// not hold links, and this holds the way to the chapter. The card stands behind its word in the
// document, so that Tab and a screen reader come from the word into it, and the word is described
// by it, so that the meaning is spoken at once.
//
// A chapter has some dozens of words. If each were a stop of the Tab key, the next exercise would be
// dozens of keys away. So each section is one stop, as a toolbar is: the arrows left and right lead
// from word to word, which the card says. A screen reader finds all of them as it reads.
(() => {
  const WORD = "a.ft-gloss";
  const CARD = "ft-gloss-card";
  const SHOW_MS = 150; // a mouse that only passes by shows nothing
  const HIDE_MS = 250; // enough to reach the card
  const EDGE = 8; // pixels to the edge of the window, and to the word
  if (!("popover" in HTMLElement.prototype)) return; // then they stay links

  let word = null; // whose card is shown
  let card = null;
  let kept = false; // by a click: it stays when the mouse leaves
  let timer = 0;

  const hide = () => {
    clearTimeout(timer);
    if (!word) return;
    card.remove();
    for (const name of ["controls", "describedby"]) word.removeAttribute(`aria-${name}`);
    word.ariaExpanded = "false";
    word = card = null;
    kept = false;
  };

  // Under the line that is pointed at, or above it where there is more room; inside the window.
  const place = (y) => {
    const lines = [...word.getClientRects()];
    const line = lines.find(({ top, bottom }) => top <= y && y <= bottom) ?? lines[0];
    const { clientWidth, clientHeight } = document.documentElement;
    const above = line.top - 2 * EDGE;
    const below = clientHeight - line.bottom - 2 * EDGE;
    card.style.maxHeight = `${Math.max(above, below)}px`;
    const { offsetWidth: width, offsetHeight: height } = card;
    const left = Math.max(EDGE, Math.min(line.left, clientWidth - width - EDGE));
    const top = height <= below || below >= above ? line.bottom + EDGE : line.top - EDGE - height;
    card.style.left = `${left + scrollX}px`;
    card.style.top = `${top + scrollY}px`;
  };

  const show = async (chosen, y) => {
    clearTimeout(timer);
    if (chosen === word) return;
    hide();
    word = chosen;
    const shown = (card = document.createElement("span"));
    card.className = CARD;
    card.id = CARD;
    card.popover = "manual";
    card.append(document.getElementById(word.dataset.card).content.cloneNode(true));
    card.children[1].id = `${CARD}-meaning`;
    word.after(card);
    word.ariaExpanded = "true";
    word.setAttribute("aria-controls", card.id);
    word.setAttribute("aria-describedby", card.children[1].id);
    card.showPopover();
    place(y);
    await window.MathJax?.typesetPromise?.([shown]);
    if (shown === card) place(y);
  };

  // One stop for each section: the word that was reached last, at first the first.
  const wordsAround = (one) => {
    let around = one.closest("section");
    while (!around.querySelector(":scope > h2")) around = around.parentElement;
    return [...around.querySelectorAll(WORD)];
  };
  const stopAt = (one) => {
    for (const other of wordsAround(one)) other.tabIndex = other === one ? 0 : -1;
  };
  const inSight = (one) => one.getClientRects().length > 0; // not in a part that is folded

  const step = (by) => {
    const words = wordsAround(word).filter(inSight);
    words[words.indexOf(word) + by]?.focus();
  };

  const sayKeys = () => {
    const keys = document.createElement("span");
    keys.className = "ft-gloss-keys";
    keys.textContent = "← → other words of this section, Esc closes";
    card.lastElementChild.append(keys);
  };

  document.addEventListener("DOMContentLoaded", () => {
    for (const one of document.querySelectorAll(WORD)) {
      one.role = "button";
      one.ariaExpanded = "false";
    }
    for (const heading of document.querySelectorAll("article h2")) {
      const words = [...heading.parentElement.querySelectorAll(WORD)];
      if (words.length) stopAt(words.find(inSight) ?? words[0]);
    }
  });

  document.addEventListener("pointerover", ({ target, pointerType, clientY }) => {
    if (pointerType === "touch") return; // a tap is a click
    clearTimeout(timer);
    const over = target.closest(WORD);
    const held = kept || document.activeElement === word || card?.contains(document.activeElement);
    if (over) timer = setTimeout(show, SHOW_MS, over, clientY);
    else if (word && !held && !card.contains(target)) timer = setTimeout(hide, HIDE_MS);
  });

  // With a key that asks for more than to follow a link, such as a new tab, it is a link.
  document.addEventListener("click", (event) => {
    const chosen = event.target.closest(WORD);
    if (!chosen || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    if (chosen === word && kept) return hide();
    show(chosen, event.clientY);
    kept = true;
  });

  document.addEventListener("pointerdown", ({ target }) => {
    if (!target.closest(`${WORD}, .${CARD}`)) hide();
  });

  document.addEventListener("focusin", ({ target }) => {
    if (target.matches(WORD)) {
      stopAt(target);
      if (!target.matches(":focus-visible")) return; // by a click, which shows it
      show(target);
      if (!card.querySelector(".ft-gloss-keys")) sayKeys();
    } else if (!card?.contains(target)) hide();
  });

  document.addEventListener("keydown", (event) => {
    const onWord = event.target.matches?.(WORD);
    if (event.key === "Escape" && word) {
      if (card.contains(document.activeElement)) word.focus();
      hide();
    } else if (onWord && (event.key === "Enter" || event.key === " ")) {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault(); // no click, no scrolling
      if (event.target === word) hide();
      else show(event.target);
    } else if (onWord && event.target === word && /^Arrow(Left|Right)$/.test(event.key)) {
      event.preventDefault();
      step(event.key === "ArrowRight" ? 1 : -1);
    }
  });
})();
