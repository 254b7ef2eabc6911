// A slider's handle has neither a name nor a readable value for a screen reader: copy both from
// the label and the readout beside it, now and whenever they change. A button that plays has only
// an icon: name what it does next.
(() => {
  if (window.firstTokenNamesSliders) return;
  window.firstTokenNamesSliders = true;
  const set = (element, name, value) => {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  };
  const nameHandles = () => {
    for (const slider of document.querySelectorAll(".ft-explore .widget-slider")) {
      const handle = slider.querySelector(".noUi-handle");
      if (!handle) continue;
      set(handle, "aria-label", slider.querySelector(".widget-label").textContent);
      const readout = slider.querySelector(".widget-readout");
      set(handle, "aria-valuetext", readout.textContent);
      set(readout, "contenteditable", "false"); // typing there would change nothing
    }
    for (const button of document.querySelectorAll(".ft-explore .widget-play button:first-child")) {
      const name = button.querySelector(".fa-pause") ? "Pause" : "Play";
      set(button, "aria-label", name);
      set(button, "title", name);
    }
  };
  new MutationObserver(nameHandles).observe(document.body, {
    subtree: true,
    childList: true,
    characterData: true,
    attributeFilter: ["aria-valuetext", "class"],
  });
  nameHandles();
})();
