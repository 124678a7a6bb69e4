"""MailHog's API (`calls`), and its JSON."""
