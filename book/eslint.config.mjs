// How the site's scripts and the live views are checked: `make check` runs this.
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/bundle.js", "book/_static/scripts/**", "_build/**", ".venv/**"] },
  js.configs.recommended,
  {
    languageOptions: { globals: { ...globals.browser, ...globals.worker } },
    rules: { "prefer-const": "error", "no-var": "error", eqeqeq: "error" },
  },
];
