/**
 * Commands for Cypress; registered when this is imported (in `cypress/support/e2e`).
 *
 *     cy.relayInbox().then((inbox) => cy.get("#email").type(inbox.address));
 *     cy.waitForMail({ subject: "Welcome" }).then((mail) => cy.visit(mail.link("/activate")));
 *
 * Promises: calls are made by `cy.request`, so by Cypress and not by the page: no rule of the
 * browser's about other origins is in the way, and nothing has to be set up in Node.js.  The relay
 * is at `RELAY_URL` and opened by `RELAY_TOKEN`, both Cypress's environment variables.  An inbox
 * ends with its test.
 *
 * Fails as the client does: `cy.waitForMail()` says what did come, and what fails for want of a
 * relay names the variables.  A relay that is away is asked again only as often as `cy.request`
 * does it.
 *
 * Nothing of Cypress is imported: it puts `Cypress` and `cy` there itself.
 */

import { INBOX } from "./answers.js";
import { REPLY, RETRYABLE_STATUSES, type Target, refused, unlike } from "./call.js";
import { Refused, hide } from "./errors.js";
import type { Flow, FlowCall } from "./exchange.js";
import {
  FIXTURE_TTL,
  InboxHandle,
  type InboxOptions,
  newMailbox,
  reworded,
  saysOfNew,
} from "./mailboxes.js";
import { DEFAULT_URL, target, whereFrom } from "./options.js";
import { AttachmentData, MessageData } from "./records.js";
import type { components } from "./schema.js";
import { asked, wait } from "./waiting.js";
import { TIMEOUT, type WaitOptions, waitable } from "./wanted.js";

/** An inbox, as Cypress hands it on. */
export interface CypressInbox {
  address: string;
  /** What opens an anonymous inbox; null where the token does. */
  sessionToken: string | null;
  /** When it ends: the plan may allow less than was asked for. */
  expiresAt: Date;
}

export interface CypressWaitOptions extends WaitOptions {
  /** The inbox to wait at; the last one that the test has made unless said. */
  inbox?: Pick<CypressInbox, "address" | "sessionToken">;
}

declare global {
  namespace Cypress {
    // What is not used here has to be there, or it is another interface than Cypress's.
    // eslint-disable-next-line @typescript-eslint/no-unused-vars
    interface Chainable<Subject = any> {
      /** Make an inbox for this test; without a `ttl` it lives for an hour at most. */
      relayInbox(options?: InboxOptions): Chainable<CypressInbox>;
      /** Wait for the oldest message that matches. */
      waitForMail(options?: CypressWaitOptions): Chainable<MessageData>;
    }
  }
}

// The part of Cypress that is used here.
interface Chain<T> {
  then<U>(next: (value: T) => Chain<U>): Chain<U>;
}
interface Response {
  status: number;
  body: unknown;
  headers: Record<string, string | string[]>;
}
interface Commands {
  env?(names: string[], options: { log: boolean }): Chain<Settings>;
  on?(event: "fail", listener: (error: Error) => never): void;
  off?(event: "fail", listener: (error: Error) => never): void;
  request(request: {
    method: string;
    url: string;
    headers: Record<string, string>;
    qs?: Record<string, string | number>;
    body?: unknown;
    timeout: number;
    failOnStatusCode: boolean;
    followRedirect: boolean;
    log: boolean;
  }): Chain<Response>;
  wait(milliseconds: number, options: { log: boolean }): Chain<unknown>;
  wrap<T>(value: T, options: { log: boolean }): Chain<T>;
}
interface Runner {
  Commands: { add(name: string, command: (options?: never) => unknown): void };
  env?(name: string): unknown;
}
type Settings = Record<string, string | null | undefined>;

const {
  Cypress: runner,
  cy,
  afterEach,
} = globalThis as unknown as {
  Cypress: Runner;
  cy: Commands;
  afterEach(hook: () => unknown): void;
};

const QUIET = { log: false };
const PAUSE = 500; // between two tries

const WHERE = whereFrom(
  "Cypress's variables RELAY_URL and RELAY_TOKEN (CYPRESS_RELAY_URL in a shell)",
);

/** Say it of what fails for want of a relay: a request without an answer Cypress lets nobody catch. */
function explain(error: Error): never {
  error.message += `\n${WHERE}`;
  throw error; // or the test would not fail
}

let made: CypressInbox[] = [];

function settings(): Chain<Settings> {
  const names = ["RELAY_URL", "RELAY_TOKEN"];
  if (cy.env) return cy.env(names, QUIET);
  const found = names.map((name) => [name, runner.env?.(name) as string | undefined] as const);
  return cy.wrap(Object.fromEntries(found), QUIET);
}

/** Where the relay is, and what opens it. */
function place(): Chain<Target> {
  return settings().then(({ RELAY_URL: url, RELAY_TOKEN: token = null }) =>
    cy.wrap(target({ url: url || DEFAULT_URL, token }, "RELAY_URL"), QUIET),
  );
}

/** What an answer says, or what its call has failed with. */
type Outcome = { said: unknown } | { error: Refused };

function call({ request, shape, deadline }: FlowCall): Chain<Outcome> {
  return place().then(({ url, token }) => {
    const once = (): Chain<Outcome> => {
      const { method, path, query, body, headers, longPoll = 0, says } =
        typeof request === "function" ? request() : request;
      cy.on?.("fail", explain);
      return cy
        .request({
          method,
          url: `${url.replace(/\/+$/, "")}${path}`,
          headers: {
            Accept: "application/json",
            ...(token && { Authorization: `Bearer ${token}` }),
            ...headers,
          },
          ...(query && { qs: query }),
          ...(body !== undefined && { body }),
          timeout: REPLY + Math.ceil(longPoll),
          failOnStatusCode: false,
          followRedirect: false,
          log: false,
        })
        .then((response) => {
          cy.off?.("fail", explain);
          const isJson = typeof response.body !== "string";
          const good = response.status < 300;
          if (good && isJson && shape(response.body)) return cy.wrap({ said: response.body }, QUIET);
          const retryable = method !== "POST" && RETRYABLE_STATUSES.has(response.status);
          if (retryable && performance.now() + PAUSE < deadline) {
            return cy.wait(PAUSE, QUIET).then(once);
          }
          const said = isJson ? JSON.stringify(response.body) : String(response.body);
          const leads = response.headers.location;
          const answer = {
            status: response.status,
            headers: new Headers(typeof leads === "string" ? { Location: leads } : {}),
            bytes: new TextEncoder().encode(said),
          };
          const error = good ? unlike(answer) : reworded(refused(answer), says);
          return cy.wrap({ error }, QUIET);
        });
    };
    return once();
  });
}

/** Run a flow to its end. */
function run<T>(flow: Flow<T>): Chain<T> {
  const go = (on: () => IteratorResult<FlowCall | number, T>): Chain<T> => {
    let step: IteratorResult<FlowCall | number, T>;
    try {
      step = on();
    } catch (error) {
      const wantsRelay =
        error instanceof Refused && (error.status === 401 || error.problem === "unknown");
      if (wantsRelay) explain(error);
      throw error;
    }
    if (step.done) return cy.wrap(step.value, QUIET);
    if (typeof step.value === "number") {
      return cy.wait(Math.ceil(step.value), QUIET).then(() => go(() => flow.next()));
    }
    return call(step.value).then((came) =>
      go(() => ("error" in came ? flow.throw(came.error) : flow.next(came.said))),
    );
  };
  return go(() => flow.next());
}

function relayInbox({ ttl = FIXTURE_TTL, ...wanted }: InboxOptions = {}): Chain<CypressInbox> {
  const body = newMailbox({ ttl, ...wanted });
  const says = saysOfNew(wanted);
  const request = { method: "POST", path: "/api/v1/mailboxes", body, says } as const;
  return run(asked<components["schemas"]["CreatedMailbox"]>(request, INBOX, 0)).then(
    ({ address, session_token: sessionToken, expires_at: at }) => {
      const inbox = { address, sessionToken, expiresAt: new Date(at) };
      hide(inbox, "sessionToken");
      made.push(inbox);
      return cy.wrap(inbox, QUIET);
    },
  );
}

/** An inbox that was made here says when it ends. */
type Waited = Omit<CypressInbox, "expiresAt"> & Partial<CypressInbox>;

function waitForMail({
  inbox = made.at(-1),
  ...wanted
}: CypressWaitOptions = {}): Chain<MessageData> {
  if (!inbox) throw new Error("there is no inbox to wait at: call cy.relayInbox() first");
  const timeout = waitable(wanted.timeout ?? TIMEOUT);
  const { address, sessionToken, expiresAt }: Waited = inbox;
  return place().then(({ token }) => {
    const handle = new InboxHandle(address, sessionToken || null, token || null, expiresAt ?? null);
    return run(wait(handle, wanted, timeout)).then((found) =>
      cy.wrap(new MessageData(found, (one) => new AttachmentData(one)), QUIET),
    );
  });
}

runner.Commands.add("relayInbox", relayInbox);
runner.Commands.add("waitForMail", waitForMail);

afterEach(() => {
  const ended = made;
  made = [];
  for (const inbox of ended) {
    const request = new InboxHandle(inbox.address, inbox.sessionToken, null, null).request("DELETE", "");
    call({ request, shape: () => true, deadline: 0 }); // or it ends with its time
  }
});
