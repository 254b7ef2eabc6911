// (root, engine, shared) => a function that ends the view.
export function cache(root, engine, shared) {
  root.textContent = "cache";
  return () => {};
}
