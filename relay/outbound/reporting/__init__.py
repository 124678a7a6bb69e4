"""Reporting: mail that the relay writes of mail.

`notices.py` finds what submitters are to be told, and `dsn.py` writes that as RFC 3464 has it;
`tls_reports.py` tells a domain once a day how TLS ended with it, and `tls_report.py` writes that as
RFC 8460 has it.  A report is queued once for what it tells, and nobody is told of a report.

Entered by `notices.py` and `tls_reports.py`.
"""
