// Draws how much of each chapter is solved, again whenever that changes.
each(".ft-progress", (root) => {
  const find = (name) => root.querySelector(name);
  const ask = find(".ft-ask");
  const sure = find(".ft-sure");
  const said = find("[role=status]");
  const asking = (yes) => {
    ask.hidden = yes;
    sure.hidden = !yes;
    (yes ? sure.querySelector("button") : ask).focus();
  };
  ask.addEventListener("click", () => asking(true));
  find(".ft-keep").addEventListener("click", () => asking(false));
  sure.addEventListener("keydown", (event) => event.key === "Escape" && asking(false));
  find(".ft-forget").addEventListener("click", () => {
    store(null);
    asking(false);
  });
  watch(() => {
    const all = kept();
    find(".ft-counts").hidden = !all;
    find(".ft-off").hidden = Boolean(all);
    if (!all) return;
    let [solved, total] = [0, 0];
    for (const row of root.querySelectorAll("tr[data-total]")) {
      const most = Number(row.dataset.total);
      // A question that was reworded since is solved under its old name, too.
      const n = Math.min(most, Object.values(all.tasks[row.dataset.chapter] ?? {}).filter((t) => t?.right).length);
      row.querySelector(".ft-bar").style.setProperty("--ft-part", n / most);
      row.querySelector(".ft-count").textContent = `${n} of ${most}`;
      solved += n;
      total += most;
    }
    const sum = `${solved} of ${total} solved.`;
    if (said.textContent !== sum) said.textContent = sum;
    const place = find(".ft-place");
    place.hidden = !all.placement;
    if (all.placement) {
      const row = find(`tr[data-chapter="${CSS.escape(all.placement.chapter)}"] th`);
      const start = row ? ["start with ", ...copy(row).childNodes, "."] : ["all of it was right."];
      place.replaceChildren(`Placement quiz, ${day(all.placement.at)}: `, ...start);
    }
  });
});
