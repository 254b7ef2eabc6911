// (root, engine, shared) => a function that ends the view.
export function inside(root, engine, shared) {
  root.textContent = "inside";
  return () => {};
}
