// Refuses by the recipient's name, and writes what is taken to $KEEP, a line of JSON a mail.
const fs = require("fs");

const ANSWERS = {
  nobody: [DENY, "no such user"],
  later: [DENYSOFT, "come back later"],
  away: [DENYSOFTDISCONNECT, "go away for now"],
};

exports.hook_rcpt = function (next, connection, params) {
  const [code, text] = ANSWERS[params[0].user] || [OK, "welcome"];
  next(code, text);
};

exports.hook_data_post = function (next, connection) {
  switch (connection.transaction.rcpt_to[0].user) {
    case "spam":
      return next(DENY, "we do not like it");
    case "full":
      return next(DENYSOFT, "no room for it");
    default:
      return next();
  }
};

exports.hook_queue = function (next, connection) {
  const { mail_from, rcpt_to, message_stream } = connection.transaction;
  message_stream.get_data((data) => {
    const kept = {
      sender: mail_from.address(),
      recipients: rcpt_to.map((each) => each.address()),
      user: connection.notes.auth_user,
      tls: connection.tls.enabled,
      message: data.toString("base64"),
    };
    fs.appendFileSync(process.env.KEEP, JSON.stringify(kept) + "\n");
    next(OK, "kept");
  });
};

// Mail of who has authenticated is outbound to Haraka; it must not leave this machine.
exports.hook_queue_outbound = exports.hook_queue;
