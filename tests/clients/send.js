// Sends the message on stdin as it is, with nodemailer: node send.js PORT FROM TO [USER PASSWORD]
// TLS in the environment: starttls or implicit, with TRUST, the certificate that is trusted.
const fs = require("fs");
const nodemailer = require("nodemailer");

const [port, from, to, user, pass] = process.argv.slice(2);
const { TLS, TRUST } = process.env;
const chunks = [];
process.stdin.on("data", (chunk) => chunks.push(chunk));
process.stdin.on("end", async () => {
  const transport = nodemailer.createTransport({
    host: "127.0.0.1",
    port: Number(port),
    name: "client.example",
    secure: TLS === "implicit",
    requireTLS: TLS === "starttls",
    ignoreTLS: !TLS,
    ...(TLS && { tls: { ca: fs.readFileSync(TRUST) } }),
    ...(user && { auth: { user, pass } }),
  });
  try {
    await transport.sendMail({ envelope: { from, to }, raw: Buffer.concat(chunks) });
  } catch (error) {
    console.error(error.response || error.message);
    process.exitCode = 1;
  }
  transport.close();
});
