// Every call of mailpit-api, as its documentation makes it.  Prints what came of each as JSON.
"use strict";

const assert = require("node:assert");
const { MailpitClient } = require("mailpit-api");

const password = process.env.PASSWORD; // none: the URL has it
const mailpit = new MailpitClient(process.env.CATCHER, {
  ...(password && { auth: { username: "any", password } }),
});
const to = "ada@customer.example";

async function main() {
  const found = {};
  async function call(name, check) {
    try {
      await check();
      found[name] = "passes";
    } catch (error) {
      found[name] = String(error.message);
    }
  }

  let id;
  await call("waitForMessage()", async () => {
    const message = await mailpit.waitForMessage({ query: `to:${to}` });
    assert.equal(message.Subject, "Reset your password");
    assert.deepEqual(message.From, { Name: "Shop", Address: "shop@shop.example" });
    assert.deepEqual(message.To.map((one) => one.Address), [to, "bob@customer.example"]);
    assert.match(message.Text, /482913/);
    assert.match(message.HTML, /<b>482913<\/b>/);
    assert.ok(Date.parse(message.Date) > Date.now() - 3_600_000);
    id = message.ID;
  });
  await call("waitForMessages()", async () => {
    const list = await mailpit.waitForMessages({ query: "subject:Reset", count: 1, exact: true });
    assert.equal(list.messages[0].ID, id);
  });
  await call("listMessages()", async () => {
    const list = await mailpit.listMessages(0, 10);
    assert.deepEqual(
      [list.total, list.unread, list.count, list.messages_count, list.messages_unread, list.start],
      [1, 0, 1, 1, 0, 0],
    );
    const [one] = list.messages;
    assert.deepEqual([one.Read, one.Attachments, one.Tags, one.Username], [true, 1, [], ""]);
    assert.match(one.Snippet, /^Your code is 482913/);
    assert.ok(Date.parse(one.Created) > Date.now() - 3_600_000);
    assert.deepEqual((await mailpit.listMessages(1)).messages, []);
  });
  await call("searchMessages()", async () => {
    const query = 'from:shop -tag:x has:attachment subject:"your password" addressed:bob@';
    const list = await mailpit.searchMessages({ query, start: 0, limit: 5, tz: "Europe/Berlin" });
    assert.equal(list.messages_count, 1);
    assert.equal((await mailpit.searchMessages({ query: "!482913" })).messages_count, 0);
  });
  let part;
  await call("getMessageSummary()", async () => {
    const message = await mailpit.getMessageSummary();
    assert.equal(message.ID, id);
    [part] = message.Attachments;
    assert.deepEqual(
      [part.FileName, part.ContentType, part.Size, part.Checksums.MD5.length],
      ["invoice.pdf", "application/pdf", 4, 32],
    );
    assert.deepEqual(
      message.Inline.map((one) => [one.ContentID, one.ContentType, one.Size]),
      [["logo@shop.example", "image/png", 3]],
    );
  });
  await call("getMessageHeaders()", async () => {
    const headers = await mailpit.getMessageHeaders(id);
    assert.deepEqual(headers.Subject, ["Reset your password"]);
    assert.deepEqual(headers["Mime-Version"], ["1.0"]);
  });
  await call("getMessageSource()", async () => {
    assert.match(await mailpit.getMessageSource(id), /^From: Shop <shop@shop.example>\r\n/);
  });
  await call("getMessageAttachment()", async () => {
    const blob = await mailpit.getMessageAttachment(id, part.PartID);
    assert.deepEqual([await blob.text(), blob.type], ["%PDF", "application/pdf"]);
  });
  await call("renderMessageHTML()", async () => {
    assert.match(await mailpit.renderMessageHTML(id), /<b>482913<\/b>/);
  });
  await call("renderMessageText()", async () => {
    assert.match(await mailpit.renderMessageText("latest"), /^Your code is 482913/);
  });
  await call("setReadStatus()", async () => {
    assert.equal(await mailpit.setReadStatus({ IDs: [id], Read: false }), "ok");
    assert.equal((await mailpit.listMessages()).unread, 1);
    await mailpit.setReadStatus({ Search: "subject:reset", Read: true }, { tz: "Europe/Berlin" });
    assert.equal((await mailpit.listMessages()).unread, 0);
  });
  await call("setTags()", async () => {
    assert.equal(await mailpit.setTags({ IDs: [id], Tags: ["Shop", "Two words"] }), "ok");
    assert.equal((await mailpit.searchMessages({ query: 'tag:"two words"' })).messages_count, 1);
  });
  await call("getTags()", async () => {
    assert.deepEqual(await mailpit.getTags(), ["Shop", "Two words"]);
  });
  await call("renameTag()", async () => {
    await mailpit.renameTag("Two words", "Words");
    assert.deepEqual(await mailpit.getTags(), ["Shop", "Words"]);
  });
  await call("deleteTag()", async () => {
    await mailpit.deleteTag("Words");
    assert.deepEqual(await mailpit.getTags(), ["Shop"]);
  });
  await call("getInfo()", async () => {
    const info = await mailpit.getInfo();
    assert.deepEqual([info.Messages, info.Unread, info.Tags], [1, 0, { Shop: 2 }]);
    assert.match(info.Version, /^relay /);
    const { Uptime, Memory, SMTPAccepted, SMTPAcceptedSize } = info.RuntimeStats;
    assert.ok(Uptime >= 0 && Uptime < 3600 && Memory > 10_000_000, JSON.stringify(info));
    assert.ok(SMTPAccepted >= 1 && SMTPAcceptedSize > 500, JSON.stringify(info));
    assert.ok(info.DatabaseSize > 1_000_000);
  });
  await call("getConfiguration()", async () => {
    const said = await mailpit.getConfiguration();
    assert.deepEqual([said.MessageRelay.Enabled, said.SpamAssassin], [true, false]);
  });
  await call("setChaosTriggers()", async () => {
    const wanted = { ErrorCode: 451, Probability: 5 };
    assert.deepEqual((await mailpit.setChaosTriggers({ Sender: wanted })).Sender, wanted);
    assert.equal((await mailpit.setChaosTriggers({})).Sender.Probability, 0);
  });
  await call("getChaosTriggers()", async () => {
    assert.equal((await mailpit.getChaosTriggers()).Recipient.Probability, 0);
  });
  await call("htmlCheck()", async () => {
    const found = await mailpit.htmlCheck(id);
    assert.deepEqual([found.Warnings, found.Total.Supported], [[], 100]);
  });
  await call("linkCheck()", async () => {
    const found = await mailpit.linkCheck(id, true);
    assert.deepEqual(found.Links.map((one) => one.URL), ["https://shop.example/reset?t=1"]);
    assert.equal(found.Errors, 1); // no such domain
  });
  await call("spamAssassinCheck()", () => mailpit.spamAssassinCheck(id));
  await call("getAttachmentThumbnail()", () => mailpit.getAttachmentThumbnail(id, part.PartID));
  await call("releaseMessage()", async () => {
    assert.equal(await mailpit.releaseMessage(id, { To: ["me@released.example"] }), "ok");
    await assert.rejects(mailpit.releaseMessage(id, { To: [to] }), /403 .*RELEASE_TO/);
  });
  await call("sendMessage()", async () => {
    const sent = await mailpit.sendMessage({
      From: { Email: "user@example.com", Name: "First LastName" },
      To: [{ Email: "rec@example.com", Name: "Recipient Name" }, { Email: to }],
      Bcc: ["secret@example.com"],
      Subject: "Test Email",
      Text: "Your code is 314159.",
      HTML: '<h1 style="display:flex">Hi</h1><a href="http://127.0.0.1:9/x">x</a>',
      Attachments: [{ Content: Buffer.from("a,b").toString("base64"), Filename: "a.csv" }],
      Headers: { "X-Order": "7" },
      Tags: ["Sent"],
    });
    const message = await mailpit.getMessageSummary(sent.ID);
    assert.deepEqual(message.From, { Name: "First LastName", Address: "user@example.com" });
    assert.deepEqual(message.To.map((one) => one.Address), ["rec@example.com", to]);
    assert.deepEqual(message.Bcc.map((one) => one.Address), ["secret@example.com"]);
    assert.match(message.Text, /314159/);
    assert.deepEqual([message.Subject, message.Tags], ["Test Email", ["Sent"]]);
    assert.deepEqual(message.Attachments.map((one) => one.ContentType), ["text/csv"]);
    assert.deepEqual((await mailpit.getMessageHeaders(sent.ID))["X-Order"], ["7"]);
    assert.equal((await mailpit.listMessages()).messages[0].ID, sent.ID);
    const [warning] = (await mailpit.htmlCheck(sent.ID)).Warnings;
    assert.equal(warning?.Slug, "css-display-flex");
    await mailpit.deleteMessages({ IDs: [sent.ID] });
  });
  await call("deleteMessagesBySearch()", async () => {
    assert.equal(await mailpit.deleteMessagesBySearch({ query: "subject:nothing" }), "ok");
    assert.equal((await mailpit.listMessages()).total, 1);
  });
  await call("deleteMessages()", async () => {
    assert.equal(await mailpit.deleteMessages({ IDs: [id] }), "ok");
    assert.equal((await mailpit.listMessages()).total, 0);
    assert.equal(await mailpit.deleteMessages(), "ok");
  });
  // What the client has and nobody tried is a fault of this file.
  const all = Object.getOwnPropertyNames(MailpitClient.prototype)
    .filter((name) => name !== "constructor" && name !== "request")
    .map((name) => `${name}()`);
  assert.deepEqual(Object.keys(found).sort(), all.sort());
  process.stdout.write(JSON.stringify(found));
}

main();
