// Brings a live view to life when its button is pressed; until then nothing more is loaded.
(() => {
  if (window.firstTokenLoadsViews) return;
  window.firstTokenLoadsViews = true;
  let script; // its address; a new one after a failure, or a browser would answer from memory
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".ft-live[data-view] .ft-live-start");
    if (!button) return;
    const root = button.closest(".ft-live");
    const base = document.documentElement.dataset.content_root || "./";
    script ??= new URL(`${base}${root.dataset.assets}live.js`, document.baseURI);
    button.disabled = true;
    try {
      (await import(script)).mount(root);
    } catch {
      script.search = `again=${Date.now()}`;
      button.disabled = false;
      let note = root.querySelector("[role=alert]");
      note ??= button.parentNode.appendChild(document.createElement("span"));
      note.setAttribute("role", "alert");
      note.textContent =
        "The script of this view could not be loaded. The page works without it; press again to try once more.";
    }
  });
})();
