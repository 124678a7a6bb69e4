"""Problems: the one form in which the control plane says no (RFC 9457).

`types.py` has the kinds of problems, what each means and what to do about it; `details.py` makes
the answer.  Depends on nothing else of the control plane.

Entered by `details.py` (to refuse), and by `types.py` (who describes refusals, or makes one without
the framework).
"""
