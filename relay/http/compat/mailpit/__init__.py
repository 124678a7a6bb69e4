"""Mailpit's API v1 (`calls`): its calls by what they are about, its JSON and its searches."""
