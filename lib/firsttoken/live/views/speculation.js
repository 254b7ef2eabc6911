// (root, engine, shared) => a function that ends the view.
export function speculation(root, engine, shared) {
  root.textContent = "speculation";
  return () => {};
}
