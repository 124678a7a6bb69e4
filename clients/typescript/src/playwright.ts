/**
 * Fixtures for Playwright: a fresh inbox for each test.
 *
 *     import { test } from "relay-client/playwright";
 *
 * | fixture | is |
 * |---|---|
 * | `inbox` | an inbox of this test alone, which ends with it |
 * | `smtpServer` | where the application is to send; asks for a token |
 * | `relay` | the client, one for each worker |
 * | `inboxOptions`, `relayOptions` | options, to be set by `test.use` or in the configuration |
 *
 * What came to the inbox of a test that failed, and to those that it has made itself and not closed,
 * is attached to its report, HTML in a frame that runs no script and loads nothing.  A test that
 * waits in vain says so before Playwright ends it.  Where no relay answers, a run waits for it once.
 */

import { join } from "node:path";
import {
  type Fixtures,
  type PlaywrightTestArgs,
  type PlaywrightTestOptions,
  type PlaywrightWorkerArgs,
  type PlaywrightWorkerOptions,
  type TestInfo,
  test as base,
  expect,
} from "@playwright/test";
import { type Away, awayIn } from "./away.js";
import {
  type FixtureInboxOptions,
  type SmtpServer,
  arrivedAtEach,
  framed,
  inboxOf,
  limitWaits,
  smtpServerOf,
  spared,
} from "./fixtures.js";
import type { Inbox } from "./inbox.js";
import type { RelayOptions } from "./options.js";
import { Relay } from "./relay.js";
import { MAX_NAME, inALine, visible } from "./text.js";

export { expect };
export type { SmtpServer };

/** What each test is given. */
export interface RelayFixtures {
  inbox: Inbox;
  /** What inbox is wanted; with `keep` it is left, to be looked at on the relay's page. */
  inboxOptions: FixtureInboxOptions;
  smtpServer: SmtpServer;
  /** When the test began, by `performance.now()`; a wait in vain ends with what it came to before it. */
  relayBegan: number;
}

/** What each worker has. */
export interface RelayWorkerFixtures {
  relay: Relay;
  /** Where the relay is; `RELAY_URL` and `RELAY_TOKEN` unless said. */
  relayOptions: RelayOptions;
}

/**
 * Beside the results of a run: a test that fails ends its worker, and the next one would wait again.
 */
function awayFrom({ project }: TestInfo): Away {
  return awayIn(join(project.outputDir, ".relay-away.json")); // which is emptied when a run begins
}

/** Attach what came to inboxes, if the test has failed. */
async function report(inboxes: Iterable<Inbox>, test: TestInfo): Promise<void> {
  if (test.status === test.expectedStatus) return;
  for (const { inbox, text, messages } of await arrivedAtEach(inboxes)) {
    const name = visible(`mail to ${inbox.address}`);
    await test.attach(name, { body: text, contentType: "text/plain" });
    for (const { subject, html } of messages) {
      if (html !== null) {
        await test.attach(`mail: ${inALine(subject ?? "(no subject)", MAX_NAME)}`, {
          body: framed(html),
          contentType: "text/html",
        });
      }
    }
  }
}

const MADE = new Set<Inbox>(); // by the test that runs: a worker has one at a time

/** For a `test` of your own: `base.extend(fixtures)`. */
export const fixtures: Fixtures<
  RelayFixtures,
  RelayWorkerFixtures,
  PlaywrightTestArgs & PlaywrightTestOptions,
  PlaywrightWorkerArgs & PlaywrightWorkerOptions
> = {
  relayOptions: [{}, { option: true, scope: "worker" }],
  inboxOptions: [{}, { option: true }],

  relay: [
    async ({ relayOptions }, use) => {
      const relay = new Relay(relayOptions);
      relay.setByFixture.openInboxes = MADE;
      await use(relay);
      await relay.close();
    },
    { scope: "worker" },
  ],

  relayBegan: [
    async ({}, use, test) => {
      MADE.clear();
      await use(performance.now());
      await report(MADE, test);
    },
    { auto: true },
  ],

  inbox: async ({ relay, relayBegan, inboxOptions }, use, test) => {
    const inbox = await inboxOf(relay, inboxOptions, test.title, awayFrom(test));
    // What the test may have is asked for anew: it can be changed while it runs, or debugged.
    limitWaits(inbox, () =>
      test.timeout > 0 ? spared(test.timeout - (performance.now() - relayBegan)) : undefined,
    );
    await use(inbox);
    await report([inbox], test);
    if (!inboxOptions.keep) await inbox.close();
  },

  smtpServer: async ({ relay }, use, test) => {
    await use(await smtpServerOf(relay, test.title, awayFrom(test)));
  },
};

/** Playwright's `test`, with the fixtures. */
export const test = base.extend<RelayFixtures, RelayWorkerFixtures>(fixtures);
