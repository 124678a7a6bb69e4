// What both clients say in the same words, and the modules that the package does not export.

import { readFileSync } from "node:fs";

export const cases = JSON.parse(readFileSync(new URL("../../cases.json", import.meta.url), "utf-8"));

/** @param {string} name */
export const inner = (name) => import(new URL(`../dist/esm/${name}.js`, import.meta.url).href);
