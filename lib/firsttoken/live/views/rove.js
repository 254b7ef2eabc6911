// Many elements, one stop for the Tab key: arrow keys go from one to the next, and up and down to
// the nearest one of the next row, as it is laid out. `items` may change; `enter` names the stop.
export function rove(container, items) {
  let stop;
  const enter = (item) => {
    if (stop) stop.tabIndex = -1;
    stop = item;
    item.tabIndex = 0;
  };
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest("[tabindex]");
    if (item && item !== stop && items.includes(item)) enter(item);
  });
  container.addEventListener("keydown", (event) => {
    const from = items.indexOf(event.target);
    const to = from < 0 ? undefined : items[target(items, from, event.key)];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    to.focus();
  });
  return { enter };
}

function target(items, from, key) {
  if (key === "ArrowRight") return from + 1;
  if (key === "ArrowLeft") return from - 1;
  if (key === "Home") return 0;
  if (key === "End") return items.length - 1;
  if (key === "ArrowDown") return inNextRow(items, from, 1);
  if (key === "ArrowUp") return inNextRow(items, from, -1);
  return undefined;
}

// A token may go over several lines; what counts is where it begins.
const place = (item) => item.getClientRects()[0] ?? item.getBoundingClientRect();

function inNextRow(items, from, step) {
  const { top, left, height } = place(items[from]);
  let row;
  let best;
  for (let at = from + step; items[at]; at += step) {
    const here = place(items[at]);
    if (Math.abs(here.top - top) < height / 2) continue;
    row ??= here.top;
    if (Math.abs(here.top - row) > height / 2) break;
    const distance = Math.abs(here.left - left);
    if (!best || distance < best.distance) best = { at, distance };
  }
  return best?.at;
}
