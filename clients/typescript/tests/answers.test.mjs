// What a relay's answer is, and what is none.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Refused } from "relay-client";
import { cases, inner } from "./cases.mjs";

const answers = await inner("answers");
const { decoded } = await inner("exchange");

for (const { shape, body, links = 0, good } of cases.answers) {
  const many = links ? ` with ${links} links` : "";
  test(`both clients take ${body}${many} for ${good ? "an answer" : "none"}`, () => {
    const bytes = new TextEncoder().encode(body.replace("*", Array(links).fill('""').join()));
    const read = () => decoded({ status: 200, headers: new Headers(), asked: "", bytes }, answers[shape]);
    if (good) read();
    else assert.throws(read, Refused);
  });
}
