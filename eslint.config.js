// Rules for the scripts of the pages: mistakes, not taste.

const js = require("@eslint/js");
const globals = require("globals");

module.exports = [
  js.configs.recommended,
  {
    files: ["sci_stream/web/static/*.js"],
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: globals.browser },
    rules: {
      "no-empty": ["error", { allowEmptyCatch: true }],
      "eqeqeq": "error",
      "no-var": "error",
      "prefer-const": "error",
      "max-len": ["error", { code: 180 }],
      "no-unused-vars": ["error", { ignoreRestSiblings: true }],
    },
  },
];
