// How the site's scripts and the live views are checked: `make check` runs this.
import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/bundle.js", "book/_static/scripts/**", "_build/**", ".venv/**"] },
  js.configs.recommended,
  {
    languageOptions: { globals: { ...globals.browser, ...globals.worker } },
    rules: {
      // All views are called alike, though not each needs all it is given.
      "no-unused-vars": ["error", { args: "none" }],
      "prefer-const": "error",
      "no-var": "error",
      eqeqeq: "error",
    },
  },
];
