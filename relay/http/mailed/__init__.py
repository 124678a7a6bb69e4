"""The pages that links in mail lead to: no script, no cookie, nothing of another origin.

`pages.py` is their frame, `texts.py` what they say in each language.

Entered by both: `resources/lifecycle_pages.py` and `resources/unsubscribe_pages.py` fill them.
"""
