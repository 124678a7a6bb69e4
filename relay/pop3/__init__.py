"""POP3: mailboxes fetched by mail readers (RFC 1939)."""
