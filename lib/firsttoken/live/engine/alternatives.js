// A pattern, for a regular expression with the flag u, of any of some texts: the longest that fits.
export function alternatives(texts) {
  const found = [...new Set(texts)].filter((text) => text).sort((a, b) => b.length - a.length);
  return found.map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("|") || "(?!)";
}
