// Makes relay/http/ui/client.js: what the relay's own page uses of this client, in one module.
//
//   node scripts/page.mjs > ../../relay/http/ui/client.js
//
// The same sources give the same bytes.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { rollup } from "rollup";
import ts from "typescript";

/** @type {import("typescript").CompilerOptions} */
const compilerOptions = {
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.ESNext,
  removeComments: true,
};

const DROPPED = /^.* \/\/ scripts\/page\.mjs drops this line\n/gm;

/**
 * What is in a file, without the lines that end so: of the page each byte counts, and it can do
 * without them.
 *
 * @param {string} file
 */
const ofThePage = (file) => readFileSync(file, "utf-8").replace(DROPPED, "");

const bundle = await rollup({
  input: fileURLToPath(new URL("../src/page.ts", import.meta.url)),
  plugins: [
    {
      name: "typescript",
      resolveId: (name, from) =>
        from ? fileURLToPath(new URL(name.replace(/\.js$/, ".ts"), `file://${from}`)) : null,
      load: (file) => ts.transpileModule(ofThePage(file), { compilerOptions }).outputText,
    },
  ],
});
const { output } = await bundle.generate({ format: "es" });
process.stdout.write(
  "// Made by scripts/page.mjs of relay-client (clients/typescript); a test finds what is not so " +
    `any more.\n\n${output[0].code}`,
);
