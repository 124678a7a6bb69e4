/** What the relay's own page uses of this client; scripts/page.mjs makes one module of it. */

export { Caller } from "./call.js";
export { Refused } from "./errors.js";
