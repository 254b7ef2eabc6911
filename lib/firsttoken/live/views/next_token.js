// (root, engine, shared) => a function that ends the view.
export function nextToken(root, engine, shared) {
  root.textContent = "next_token";
  return () => {};
}
