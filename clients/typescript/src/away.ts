/**
 * What the processes of a run know of relays that are away, in a file: each relay is waited for
 * once, and not again by the next process, which knows nothing else of the one before.
 *
 * Where the file cannot be read or written each process waits.  Of two runs that share a file each
 * forgets what the other knows.
 */

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";

/** Why relays, by their URLs, did not answer: each is waited for once. @internal */
export interface Away {
  get(url: string): string | undefined;
  set(url: string, why: string): unknown;
  delete(url: string): unknown;
}

/**
 * What is known in a file; `run` names the run that knows it, where its folder does not.
 * @internal
 */
export function awayIn(file: string, run = ""): Away {
  const read = (): Record<string, string | undefined> => {
    try {
      const known = JSON.parse(readFileSync(file, "utf-8"));
      return known.run === run ? known.away : {};
    } catch {
      return {};
    }
  };
  const write = (url: string, why: string | undefined) => {
    const known = read();
    if (why === undefined && !(url in known)) return;
    try {
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, JSON.stringify({ run, away: { ...known, [url]: why } }));
    } catch {
      // As said above.
    }
  };
  return {
    get: (url) => read()[url],
    set: write,
    delete: (url) => write(url, undefined),
  };
}
