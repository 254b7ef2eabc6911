// Pieces that views are made of: sliders, bars, buttons, the progress bar.
export function waiting(root) {
  return {
    progress: () => {},
    done: () => {},
    failed: (error) => {
      root.textContent = String(error);
    },
  };
}
