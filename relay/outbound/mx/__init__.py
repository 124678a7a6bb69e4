"""Direct delivery: mail goes to the mail exchangers of its domain, with no upstream in between."""
