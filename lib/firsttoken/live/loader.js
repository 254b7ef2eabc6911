// Brings a live view to life when its button is pressed; until then nothing more is loaded.
(() => {
  if (window.firstTokenLoadsViews) return;
  window.firstTokenLoadsViews = true;
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".ft-live[data-view] .ft-live-start");
    if (!button) return;
    const root = button.closest(".ft-live");
    button.disabled = true;
    const base = document.documentElement.dataset.content_root || "./";
    try {
      const script = new URL(`${base}${root.dataset.assets}live.js`, document.baseURI);
      await (await import(script)).mount(root);
    } catch {
      const note = document.createElement("p");
      note.setAttribute("role", "alert");
      note.textContent =
        "The script of this view could not be loaded. The page works without it; reload to try again.";
      button.replaceWith(note);
    }
  });
})();
