"""The names under which what mail brings is downloaded."""

from relay.http.downloads import disposition


def test_a_file_name_is_only_a_name():
    """Paths, quotes, line ends and characters that turn text around do not survive."""
    assert disposition('a"b\r\nX: y.txt') == (
        "attachment; filename=\"a_bX_ y.txt\"; filename*=UTF-8''a%22bX%3A%20y.txt"
    )
    assert "filename*=UTF-8''Gr%C3%BC%C3%9Fe.pdf" in disposition("C:\\x\\Grüße.pdf")
    assert "202" not in disposition("a\u202egpj.exe")
    assert disposition("..") == "attachment; filename=\"attachment\"; filename*=UTF-8''attachment"
