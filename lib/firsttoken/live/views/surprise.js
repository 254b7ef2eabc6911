// (root, engine, shared) => a function that ends the view.
export function surprise(root, engine, shared) {
  root.textContent = "surprise";
  return () => {};
}
