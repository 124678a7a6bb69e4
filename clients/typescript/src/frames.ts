/**
 * Cuts this package's own frames out of the stacks of its errors: what a runner of tests shows first is
 * the line of the test.  Async functions are in a stack by their names alone, so that
 * `Error.captureStackTrace` cannot leave them out.
 *
 * Where no frame says which files are this package's, as in a bundle, stacks stay as they are.
 */

import { STACKS } from "./errors.js";

const OWN = 20; // frames of ours at most: they take the place of nobody's

const here = new Error().stack ?? "";
const [, own] = /\((.*[\\/])frames\.js:/.exec(here) ?? /at (file:.*[\\/])frames\.js:/.exec(here) ?? [];

if (own !== undefined) {
  STACKS.cut = (error, name) => {
    const limit = Error.stackTraceLimit;
    Error.stackTraceLimit = limit + OWN;
    Error.captureStackTrace(error);
    Error.stackTraceLimit = limit;
    const { message, stack = "" } = error;
    const frames = stack.slice(stack.indexOf(message) + message.length).split("\n").slice(1);
    const others = frames.filter((frame) => !frame.includes(own));
    // Which were ours, too: of what runs tasks, and flows (`next (<anonymous>)`).
    while (/\((node:internal\/|<anonymous>)/.test(others[0] ?? "")) others.shift();
    // What fetch itself says has frames of Node.js and of ours alone; the text has the reason.
    for (let one = error.cause; one instanceof Error; one = one.cause) one.stack = String(one);
    if (others.length > 0) error.stack = [`${name}: ${message}`, ...others.slice(0, limit)].join("\n");
  };
}
