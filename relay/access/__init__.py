"""Who may do what: API keys, owners, and what plans allow."""
