"""What the documents say, held against the program."""
