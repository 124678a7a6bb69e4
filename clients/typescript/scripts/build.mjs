// Builds dist/: ESM and CommonJS, each with its types.  The same sources give the same bytes.
//
// Comments are in the types, where editors show them; in the programs they were a seventh of all.

import { execFileSync } from "node:child_process";
import { chmodSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

process.umask(0o022); // a tarball keeps modes
process.chdir(fileURLToPath(new URL("..", import.meta.url)));
const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");

rmSync("dist", { recursive: true, force: true });
for (const project of ["tsconfig.json", "tsconfig.cjs.json"]) {
  for (const emitted of [["--emitDeclarationOnly"], ["--declaration", "false", "--removeComments", "--noCheck"]]) {
    execFileSync(process.execPath, [tsc, "--project", project, ...emitted], { stdio: "inherit" });
  }
}
writeFileSync("dist/cjs/package.json", '{ "type": "commonjs" }\n');
chmodSync("dist/esm/cli.js", 0o755);
