// Every command of cypress-mailhog, without Cypress: what it uses of `cy` is stood in for below, its
// own code runs as it is, and so does the library by which Cypress makes requests.  Prints what came of each command as JSON.
"use strict";

const assert = require("node:assert");
const request = require("@cypress/request");

// What the check that runs has begun.  Cypress queues each command, so one that a command begins and
// does not return counts as well.
let begun = [];

// A chain of commands, each with what the one before yielded.
class Chain {
  constructor(promise) {
    this.promise = promise;
    begun.push(promise);
  }
  then(...handlers) {
    return new Chain(this.promise.then(...handlers));
  }
  its(name) {
    return this.then((value) => value[name]);
  }
  should(kind, wanted) {
    return this.then((value) => {
      if (kind === "have.length") assert.equal(value.length, wanted);
      else if (kind === "not.have.length") assert.notEqual(value.length, wanted);
      else if (kind === "to.have.length.greaterThan") assert.ok(value.length > wanted);
      else throw new Error(`no such assertion: ${kind}`);
      return value;
    });
  }
}

const added = []; // every command that it has
const pass = process.env.PASSWORD; // none: the URL has it
const settings = {
  mailHogUrl: process.env.CATCHER,
  ...(pass && { mailHogAuth: { user: "any", pass } }),
};

globalThis.Cypress = {
  env: (name) => settings[name],
  config: () => undefined,
  Commands: {
    add(name, ...rest) {
      added.push(name);
      const command = rest.pop();
      const child = rest.length > 0;
      if (child) {
        Chain.prototype[name] = function (...given) {
          return this.then((subject) => command(subject, ...given));
        };
      } else {
        cy[name] = (...given) => new Chain(Promise.resolve().then(() => command(...given)));
      }
    },
  },
};
globalThis.cy = {
  wrap: (value) => new Chain(Promise.resolve(value)),
  verifyUpcomingAssertions: (value) => value,
  request({ method, url, auth, failOnStatusCode = true }) {
    return new Chain(
      new Promise((resolve, reject) => {
        request({ method, url, auth: auth || undefined }, (error, answer) => {
          if (error) reject(error);
          else if (answer.statusCode >= 400 && failOnStatusCode) {
            reject(new Error(`it answers ${answer.statusCode}`));
          } else resolve({ status: answer.statusCode, body: answer.body });
        });
      }),
    );
  },
};
require("cypress-mailhog");

const subject = "Reset your password";
const to = "ada@customer.example";
const from = "shop@shop.example";
const first = () => cy.mhGetAllMails().mhFirst();
const checks = {
  mhGetAllMails: () => cy.mhGetAllMails().should("have.length", 1),
  mhGetMailsBySubject: () => cy.mhGetMailsBySubject(subject).should("have.length", 1),
  mhGetMailsBySender: () => cy.mhGetMailsBySender(from).should("have.length", 1),
  mhGetMailsByRecipient: () => cy.mhGetMailsByRecipient(to).should("have.length", 1),
  mhFirst: () => first().its("ID").should("have.length", 36),
  mhSearchMails: async () => {
    await cy.mhSearchMails("containing", "482913").should("have.length", 1);
    await cy.mhSearchMails("to", "bob@customer").should("have.length", 1);
    await cy.mhSearchMails("from", "nobody").should("have.length", 0);
  },
  mhFilterBySubject: () => cy.mhGetAllMails().mhFilterBySubject(subject).should("have.length", 1),
  mhFilterByRecipient: () => cy.mhGetAllMails().mhFilterByRecipient(to).should("have.length", 1),
  mhFilterBySender: () => cy.mhGetAllMails().mhFilterBySender("x@y.z").should("have.length", 0),
  mhGetSubject: async () => assert.equal(await first().mhGetSubject(), subject),
  mhGetBody: async () => assert.match(await first().mhGetBody(), /482913/),
  mhGetSender: async () => assert.equal(await first().mhGetSender(), from),
  mhGetRecipients: async () =>
    assert.deepEqual(await first().mhGetRecipients(), [to, "bob@customer.example"]),
  mhGetAttachments: async () =>
    assert.deepEqual(await first().mhGetAttachments(), ['"invoice.pdf"']),
  mhHasMailWithSubject: () => cy.mhHasMailWithSubject(subject),
  mhHasMailFrom: () => cy.mhHasMailFrom(from),
  mhHasMailTo: () => cy.mhHasMailTo(to),
  mhWaitForMails: () => cy.mhWaitForMails(0),
  mhGetJimMode: async () => assert.equal(await cy.mhGetJimMode(), false),
  mhSetJimMode: async () => {
    const { status } = await cy.mhSetJimMode(true);
    if (status >= 400) throw new Error(`it answers ${status}`);
    assert.equal(await cy.mhGetJimMode(), true);
  },
  mhDeleteAll: async () => {
    await cy.mhDeleteAll();
    await cy.mhGetAllMails().should("have.length", 0);
  },
};

async function main() {
  assert.deepEqual(Object.keys(checks).sort(), added.sort()); // or one of them was not tried
  const found = {};
  for (const [name, check] of Object.entries(checks)) {
    begun = [];
    try {
      await check();
      while (begun.length > 0) await begun.shift();
      found[name] = "passes";
    } catch (error) {
      found[name] = String(error.message);
    }
  }
  // Its timers, of which each command leaves one, would keep the process for seconds.
  process.stdout.write(JSON.stringify(found), () => process.exit(0));
}

main();
