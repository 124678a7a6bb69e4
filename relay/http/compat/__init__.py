"""The answers of other programs that catch mail, so that suites written for them run unchanged.

A call here has the path, the values and the answers of the program it stands in for, behind
`/compat/…`: its JSON, its statuses, its plain-text errors.  Who may call is this relay's own law
(`Operation.compat`): nothing is open that is not open elsewhere.
"""
