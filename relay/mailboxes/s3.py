"""Pre-signed addresses, at which mail is fetched that Amazon SES put into S3.  Pure.

Signature Version 4 with the signature in the query ("Authenticating Requests: Using Query
Parameters", the Amazon S3 API reference): the request needs no header but Host, names exactly one
object, and is good for some minutes.  No SDK: it is six HMACs over one string.

Promises
  * Only an object of an allowed bucket has an address here.
  * The secret is in no address, only what it signed.

Fails: `ValueError` for a region that cannot be one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

GOOD_FOR = 300
"""Seconds for which an address is signed: clocks differ, and a fetch may begin late."""

_REGION = re.compile(r"[a-z]{2}(?:-[a-z0-9]+){1,4}", re.ASCII)
_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    """An access key; `session_token` belongs to temporary ones."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class Buckets:
    """The buckets that may be read, and the credentials for it.

    `allowed`: region by bucket, "" for the topic's own.
    `endpoint`: the base of another server than Amazon's, which has its buckets in the path.
    """

    allowed: dict[str, str]
    credentials: Credentials
    endpoint: str = ""

    def address(self, bucket: str, key: str, region: str, now: datetime) -> str | None:
        """The pre-signed address of an object, None where its bucket is not allowed.

        `region`: that of the topic, where the setting does not say another.
        """
        if bucket not in self.allowed or not key:
            return None
        region = self.allowed[bucket] or region
        if not _REGION.fullmatch(region):
            raise ValueError(f"{region!r} is not a region")
        path = "/" + quote(key, safe="/-_.~")
        if self.endpoint:
            return presigned(f"{self.endpoint}/{bucket}{path}", region, self.credentials, now)
        suffix = ".cn" if region.startswith("cn-") else ""
        host = f"s3.{region}.amazonaws.com{suffix}"
        # A dot in a bucket's name would not fit the certificate of the server.
        base = f"{host}/{bucket}" if "." in bucket else f"{bucket}.{host}"
        return presigned(f"https://{base}{path}", region, self.credentials, now)


def parse_bucket(text: str) -> tuple[str, str]:
    """Split `bucket` or `bucket@region`, as the settings checked it."""
    bucket, _, region = text.partition("@")
    return bucket, region


def presigned(
    url: str, region: str, credentials: Credentials, now: datetime, good_for: int = GOOD_FOR
) -> str:
    """Return `url` (its path percent-encoded already) signed for a GET."""
    parts = urlsplit(url)
    at = now.astimezone(UTC)
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    scope = f"{day}/{region}/s3/aws4_request"
    values = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key}/{scope}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(good_for),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        values["X-Amz-Security-Token"] = credentials.session_token
    query = "&".join(
        f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(values.items())
    )
    request = "\n".join(
        ("GET", parts.path, query, f"host:{parts.netloc}\n", "host", "UNSIGNED-PAYLOAD")
    )
    digest = hashlib.sha256(request.encode()).hexdigest()
    to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}\n{digest}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in (day, region, "s3", "aws4_request", to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return f"{url}?{query}&X-Amz-Signature={key.hex()}"
