// Makes src/schema.ts of what a relay says of itself: the calls that this client makes, what they
// take and what a good answer says.
//
//   node scripts/schema.mjs RELAY_URL_OR_FILE > src/schema.ts
//
// Of the others nothing is kept: a new call of the relay changes no file here.  Fails where the
// relay has a call no longer.

import { readFile } from "node:fs/promises";
import openapiTS, { astToString } from "openapi-typescript";

const CALLS = new Set([
  "createMailbox",
  "deleteMailbox",
  "waitForMessage",
  "listMessages",
  "listRefused",
  "listCaptured",
  "getMessage",
  "deleteMessage",
  "getRawMessage",
  "getAttachment",
  "checkMessage",
  "sendMessage",
  "getSentMessage",
  "getInfo",
]);

const [where = ""] = process.argv.slice(2);
/** @type {any} */
const document = /^https?:/.test(where)
  ? await (await fetch(`${where}/openapi.json`)).json()
  : JSON.parse(await readFile(where, "utf-8"));

/** @type {Record<string, any>} */
const paths = {};
const missing = new Set(CALLS);
for (const [path, item] of Object.entries(document.paths)) {
  for (const [method, call] of Object.entries(/** @type {Record<string, any>} */ (item))) {
    if (!CALLS.has(call.operationId)) continue;
    missing.delete(call.operationId);
    const { operationId, summary, parameters, requestBody, responses } = call;
    const good = Object.entries(responses).filter(([status]) => status < "300");
    paths[path] ??= {};
    paths[path][method] = {
      operationId,
      summary,
      parameters,
      requestBody,
      responses: Object.fromEntries(good),
    };
  }
}
if (missing.size) throw new Error(`the relay has no ${[...missing].join(", ")}`);

/** @type {Record<string, any>} */
const schemas = {};
collect(paths);
const ordered = Object.fromEntries(Object.entries(schemas).sort(([a], [b]) => (a < b ? -1 : 1)));
const ast = await openapiTS(
  { openapi: document.openapi, info: document.info, paths, components: { schemas: ordered } },
  { defaultNonNullable: false, silent: true },
);
process.stdout.write(
  "/* Made by scripts/schema.mjs of a relay's /openapi.json; a test finds what is not so any more. " +
    `*/\n\n${astToString(ast)}`,
);

/** @param {any} value */
function collect(value) {
  if (value === null || typeof value !== "object") return;
  delete value.examples;
  delete value.example;
  if (typeof value.title === "string") delete value.title; // its name, once more
  for (const [key, inner] of Object.entries(value)) {
    const name = key === "$ref" && /^#\/components\/schemas\/(.*)$/.exec(String(inner))?.[1];
    if (name && !schemas[name]) {
      schemas[name] = document.components.schemas[name];
      collect(schemas[name]);
    }
    collect(inner);
  }
}
