/**
 * Cuts this package's own frames out of the stacks of its errors: what a runner of tests shows first is
 * the line of the test.  Async functions are in a stack by their names alone, so that
 * `Error.captureStackTrace` cannot leave them out.
 *
 * Where no frame says which files are this package's, as in a bundle, stacks stay as they are.
 */

import { STACKS } from "./errors.js";

const here = new Error().stack ?? "";
const [, own] = /\((.*[\\/])frames\.js:/.exec(here) ?? /at (file:.*[\\/])frames\.js:/.exec(here) ?? [];

if (own !== undefined) {
  STACKS.cut = (error, name) => {
    const { message, stack = "" } = error;
    const frames = stack.slice(stack.indexOf(message) + message.length).split("\n").slice(1);
    const others = frames.filter((frame) => !frame.includes(own));
    while (others[0]?.includes("(node:internal/")) others.shift(); // which were ours, too
    // What fetch itself says has frames of Node.js and of ours alone; the text has the reason.
    for (let one = error.cause; one instanceof Error; one = one.cause) one.stack = String(one);
    if (others.length > 0) error.stack = [`${name}: ${message}`, ...others].join("\n");
  };
}
