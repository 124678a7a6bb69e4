// Sends the message on stdin as it is, with nodemailer: node send.js PORT FROM TO [USER PASSWORD]
const nodemailer = require("nodemailer");

const [port, from, to, user, pass] = process.argv.slice(2);
const chunks = [];
process.stdin.on("data", (chunk) => chunks.push(chunk));
process.stdin.on("end", async () => {
  const transport = nodemailer.createTransport({
    host: "127.0.0.1",
    port: Number(port),
    name: "client.example",
    ignoreTLS: true,
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
