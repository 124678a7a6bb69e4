"""SMTP: the server (mail that comes in, LMTP, submission), and the client that delivers."""
