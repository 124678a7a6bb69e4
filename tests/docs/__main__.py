"""`python -m tests.docs` writes the documents' tables again; see `tables`."""

from tests.docs.tables import main

main()
