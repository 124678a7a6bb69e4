"""Pre-signed addresses, against what Amazon publishes."""

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

from relay.mailboxes.s3 import Buckets, Credentials, parse_bucket, presigned

# "Example: GET Object" of the S3 API reference, with its keys.
KEYS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)


def test_signs_as_the_published_example():
    """The signature of the S3 API reference's own example comes out."""
    url = presigned(
        "https://examplebucket.s3.amazonaws.com/test.txt", "us-east-1", KEYS, NOW, good_for=86400
    )
    assert url == (
        "https://examplebucket.s3.amazonaws.com/test.txt"
        "?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize(
    ("bucket", "key", "base"),
    [
        ("mail", "in/abc", "https://mail.s3.eu-west-1.amazonaws.com/in/abc"),
        ("other", "a b+c/\u00fc", "https://other.s3.us-east-2.amazonaws.com/a%20b%2Bc/%C3%BC"),
        ("with.dot", "x", "https://s3.eu-west-1.amazonaws.com/with.dot/x"),
        ("china", "x", "https://china.s3.cn-north-1.amazonaws.com.cn/x"),
    ],
)
def test_knows_where_a_bucket_is(bucket, key, base):
    """In the topic's region or the setting's, by host name where a certificate allows it."""
    texts = ("mail", "other@us-east-2", "with.dot", "china@cn-north-1")
    buckets = Buckets(dict(map(parse_bucket, texts)), KEYS)
    assert (buckets.address(bucket, key, "eu-west-1", NOW) or "").partition("?")[0] == base


def test_other_buckets_have_no_address():
    """What is not allowed is not signed for, and a region is not just any text."""
    buckets = Buckets({"mail": ""}, KEYS)
    assert buckets.address("theirs", "x", "eu-west-1", NOW) is None
    assert buckets.address("mail", "", "eu-west-1", NOW) is None
    for region in ("", "evil.example/", "EU"):
        with pytest.raises(ValueError, match="region"):
            buckets.address("mail", "x", region, NOW)


def test_a_session_token_is_signed_and_secrets_are_not_shown():
    """Temporary credentials carry their token; no representation shows what is secret."""
    temporary = Credentials("AK", "secret", "to/ken==")
    buckets = Buckets({"mail": ""}, temporary, "http://127.0.0.1:9000")
    url = buckets.address("mail", "x", "eu-west-1", NOW)
    assert url is not None
    assert url.startswith("http://127.0.0.1:9000/mail/x?")
    assert parse_qs(urlsplit(url).query)["X-Amz-Security-Token"] == ["to/ken=="]
    assert "secret" not in url + repr(buckets)
