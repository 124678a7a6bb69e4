"""SMTP: the server that receives mail."""
