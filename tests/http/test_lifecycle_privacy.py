"""Account mail through the whole relay: it arrives, its link works, and no log has read along."""

import re
from pathlib import Path

import httpx
import psycopg

from tests.relay_process import RelayProcess

PERSON = "canary.person@relay.localhost"
LOGIN = "canary-login"


def test_from_sql_to_active_and_recovered_with_nothing_personal_logged(tmp_path: Path) -> None:
    """INSERT, mail, link, form; then a recovery; then all that can go wrong, at debug level: no
    address, login, token or code in log, metrics or a refusal."""
    secrets: list[str] = []
    answers: list[httpx.Response] = []
    with RelayProcess(tmp_path / "data", env={"RELAY_LOG__LEVEL": "debug"}) as relay:
        with (
            relay.http() as admin,
            httpx.Client(base_url=relay.run["http"], timeout=20) as person,
            psycopg.connect(relay.run["database_url"], autocommit=True) as sql,
        ):
            made = admin.post("/api/v1/mailboxes", json={"local_part": PERSON.partition("@")[0]})
            assert made.status_code == 201
            row = sql.execute(
                "INSERT INTO relay.accounts (email, login) VALUES (%s, %s) RETURNING id",
                (PERSON, LOGIN),
            ).fetchone()
            assert row is not None
            path = f"/api/v1/accounts/{row[0]}"
            token, _ = _read(admin, "/activate", secrets)
            assert person.get("/activate", params={"token": token}).status_code == 200
            assert admin.get(path).json()["status"] == "provisioned"
            assert person.post("/activate", data={"token": token}).status_code == 200
            assert admin.get(path).json()["status"] == "active"

            assert admin.post(f"{path}/recover").status_code == 202
            recovery, code = _read(admin, "/recover", secrets)
            wrong = f"{(int(code) + 1) % 100_000:05}"
            answers += [
                person.post("/api/v1/tokens/consume", json={"token": recovery}),
                person.post("/api/v1/tokens/consume", json={"token": recovery, "code": wrong}),
                person.post("/api/v1/tokens/consume", json={"token": token, "code": code}),
                person.post("/api/v1/tokens/consume", json={"token": [recovery], "code": code}),
                person.post("/api/v1/tokens/consume", content=f'{{"token": "{recovery}"'),
                person.post(f"/api/v1/tokens/{recovery}", json={"code": code}),
                admin.post("/api/v1/accounts", json={"email": PERSON, "login": LOGIN}),
                admin.post("/api/v1/accounts", json={"email": PERSON, "login": f"{LOGIN},"}),
                admin.post("/api/v1/accounts", json={"email": f"{PERSON},", "login": LOGIN}),
            ]
            for values in ((PERSON, LOGIN), (PERSON, f"{LOGIN},"), (f"{PERSON},", LOGIN)):
                try:
                    sql.execute("INSERT INTO relay.accounts (email, login) VALUES (%s, %s)", values)
                except psycopg.IntegrityError:
                    continue
                raise AssertionError(values)
            done = person.post("/recover", data={"token": recovery, "code": code})
            assert done.status_code == 200
            metrics = person.get("/metrics").text
        assert relay.stop() == 0
    texts = {"log": relay.log_file.read_text(), "metrics": metrics}
    assert '"path":"/activate"' in texts["log"]
    for answer in answers:
        assert answer.status_code in {400, 404, 409, 422}, answer.text
        texts[f"{answer.request.url.path} {answer.status_code}"] = answer.text
    for name, text in texts.items():
        for secret in (*secrets, PERSON, LOGIN):
            # A code is five digits, which a time or a port may hold too: as a value of its own.
            pattern = rf"(?<![\d.:]){secret}(?![\d.])" if secret.isdigit() else re.escape(secret)
            found = re.search(pattern, text)
            assert found is None, f"{name}: {text[max(0, found.start() - 200) : found.end() + 50]}"


def _read(admin: httpx.Client, page: str, secrets: list[str]) -> tuple[str, str]:
    """Wait for the mail that links to `page`; return its token and its code."""
    answer = admin.get(
        f"/api/v1/mailboxes/{PERSON}/messages/wait",
        params={"timeout": 25, "subject": "activate" if page == "/activate" else "recover"},
    )
    assert answer.status_code == 200
    message = answer.json()
    link = re.search(rf"{page}\?token=([A-Za-z0-9_-]{{86}})", message["body_text"])
    assert link is not None, message["body_text"]
    code = re.search(r"code: (\d{5})\b", message["body_text"])
    secrets += [link[1], link[1][:43], *([code[1]] if code else [])]
    return link[1], code[1] if code else ""
