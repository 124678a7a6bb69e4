// Builds dist/: ESM and CommonJS, each with its types.  The same sources give the same bytes.
//
// Comments are in the types, where editors show them; in the programs they were a seventh of all.  Of
// modules that no exported type leads to there are no types, nor of what is `@internal`, which
// nobody can import: these were a tenth of the package.  All is indented by tabs: another
// hundredth.

import { execFileSync } from "node:child_process";
import { chmodSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

process.umask(0o022); // a tarball keeps modes
process.chdir(fileURLToPath(new URL("..", import.meta.url)));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

/**
 * Indent a file by tabs.  A program with a text of several lines, which has its blanks, stays as it is.
 *
 * @param {string} file
 */
function tabbed(file) {
  const text = readFileSync(file, "utf-8");
  const isOdd = (/** @type {string} */ line) => line.split("`").length % 2 === 0;
  if (file.endsWith(".js") && text.split("\n").some(isOdd)) return;
  const tabs = (/** @type {string} */ blanks) =>
    "\t".repeat(blanks.length / 4) + " ".repeat(blanks.length % 4);
  writeFileSync(file, text.replace(/^ {4,}/gm, tabs));
}

rmSync("dist", { recursive: true, force: true });
for (const project of ["tsconfig.json", "tsconfig.cjs.json"]) {
  const programs = ["--declaration", "false", "--removeComments", "--noCheck"];
  for (const emitted of [["--emitDeclarationOnly"], programs]) {
    execFileSync(process.execPath, [tsc, "--project", project, ...emitted], { stdio: "inherit" });
  }
}
// Types are there once: CommonJS's, which both may import.
for (const name of readdirSync("dist/esm").filter((one) => one.endsWith(".d.ts"))) {
  const twin = `dist/cjs/${name}`;
  if (existsSync(twin) && readFileSync(twin).equals(readFileSync(`dist/esm/${name}`))) {
    writeFileSync(`dist/esm/${name}`, `export * from "../cjs/${name.replace(".d.ts", ".js")}";\n`);
  }
}
for (const folder of ["dist/esm", "dist/cjs"]) {
  const led = new Set(["index.d.ts", "playwright.d.ts", "cypress.d.ts", "vitest.d.ts"]);
  const types = readdirSync(folder).filter((name) => name.endsWith(".d.ts"));
  for (const name of led) {
    if (!types.includes(name)) continue;
    const text = readFileSync(`${folder}/${name}`, "utf-8");
    for (const [, other] of text.matchAll(/"\.\/(\w+)\.js"/g)) led.add(`${other}.d.ts`);
  }
  for (const name of types) if (!led.has(name)) rmSync(`${folder}/${name}`);
  rmSync(`${folder}/schema.js`); // types alone, which no program loads
  for (const name of readdirSync(folder)) tabbed(`${folder}/${name}`);
}
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
chmodSync("dist/esm/cli.js", 0o755);
