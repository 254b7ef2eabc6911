// A slider's handle has neither a name nor a readable value for a screen reader: copy both from
// the label and the readout beside it, now and whenever they change.
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
  };
  new MutationObserver(nameHandles).observe(document.body, {
    subtree: true,
    childList: true,
    characterData: true,
    attributeFilter: ["aria-valuetext"],
  });
  nameHandles();
})();
