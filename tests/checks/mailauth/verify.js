// Verifies messages: a JSON object a line on stdin, {raw (base64), zone, ip, helo, sender}, and an
// answer a line, {spf, dmarc, dkim: [{selector, result}]}.  `zone` is the whole DNS: "name/TYPE" to
// records as text, or null for a server that fails.
const readline = require("node:readline");
const { authenticate } = require("mailauth");

console.log = () => {}; // it tells of lengths there

function failure(code) {
  return Object.assign(new Error(code), { code });
}

function resolver(zone) {
  const names = new Set(Object.keys(zone).map((key) => key.split("/")[0]));
  return async (name, type) => {
    name = name.toLowerCase().replace(/\.$/, "");
    const records = zone[`${name}/${type || "A"}`];
    if (records === null) throw failure("ESERVFAIL");
    if (records === undefined) throw failure(names.has(name) ? "ENODATA" : "ENOTFOUND");
    return type === "TXT" ? records.map((record) => [record]) : records;
  };
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { raw, zone, ip, helo, sender } = JSON.parse(line);
    const said = await authenticate(Buffer.from(raw, "base64"), {
      ip,
      helo,
      sender,
      mta: "mx.example",
      resolver: resolver(zone),
      disableArc: true,
      disableBimi: true,
    });
    const dkim = said.dkim.results
      .filter((one) => one.selector)
      .map((one) => ({ selector: one.selector, result: one.status.result }));
    const dmarc = said.dmarc ? said.dmarc.status.result : null;
    process.stdout.write(JSON.stringify({ spf: said.spf.status.result, dmarc, dkim }) + "\n");
  }
}

main();
