"""Answers in the manner of other programs: plain texts, and refusals that are no documents; and the
404 at a path of theirs, which says where their calls are."""

from __future__ import annotations

from quart import Response
from werkzeug.routing import MapAdapter

from relay.http.problems.details import Problem, another_programs, another_programs_too, from_status

PREFIX = "/compat/"
"""The beginning of the paths of all calls here."""

_AS_OTHERS_SAY = {415: 400, 422: 400}  # of statuses that their clients do not know


def text(said: str, status: int = 200) -> Response:
    """Return a plain text."""
    return Response(said.encode(), status=status, content_type="text/plain; charset=utf-8")


def refusal(problem: Problem) -> Response:
    """Return what a problem says, as a plain text."""
    answer = text(problem.detail, _AS_OTHERS_SAY.get(problem.status, problem.status))
    answer.headers.update(problem.headers)
    if problem.status == 401:
        answer.headers["WWW-Authenticate"] = 'Basic realm="relay", charset="UTF-8"'
    return answer


def not_here(calls: MapAdapter, path: str, method: str) -> Problem:
    """Return the 404 of a path at which there is nothing; of another program's own, where it is."""
    theirs = _theirs(calls, path, method)
    return from_status(404) if theirs is None else another_programs(*theirs)


def not_let_in(calls: MapAdapter, path: str, method: str, problem: Problem) -> Problem:
    """Return the 401 of a call; of one that another program has, too, where that is."""
    theirs = _theirs(calls, path, method)
    return problem if theirs is None else another_programs_too(*theirs)


def _theirs(calls: MapAdapter, path: str, method: str) -> tuple[str, str] | None:
    for name, place in (("Mailpit", f"{PREFIX}mailpit"), ("MailHog", f"{PREFIX}mailhog")):
        if calls.test(f"{place}{path}", method):
            return name, place
    return None


def bad(said: str) -> Problem:
    """Return the 400 for a value that is wrong, and for what this relay does not do."""
    return Problem(400, "bad-request", said)
