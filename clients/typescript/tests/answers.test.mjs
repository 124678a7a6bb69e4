// What a relay's answer is, and what is none.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Refused } from "relay-client";
import { cases, inner } from "./cases.mjs";

const answers = await inner("answers");
const { decoded } = await inner("exchange");

for (const { shape, body, good } of cases.answers) {
  test(`both clients take ${body} for ${good ? "an answer" : "none"}`, () => {
    const bytes = new TextEncoder().encode(body);
    const read = () => decoded({ status: 200, headers: new Headers(), asked: "", bytes }, answers[shape]);
    if (good) read();
    else assert.throws(read, Refused);
  });
}
