"""Downloads: the memory that is held for them, and their names."""

import pytest

from relay.http.problems.details import Problem
from relay.http.responses.downloads import UNHELD, Downloads, disposition


def test_what_is_held_for_an_answer_is_given_back_where_it_fails():
    """Beyond the block it is held where that ends well; little never is; what is less is less."""
    downloads = Downloads(8 * UNHELD)
    all_of_one = 2 * UNHELD

    def is_free() -> bool:
        try:
            downloads.hold("a", all_of_one).release()
        except Problem as problem:
            assert problem.status == 503
            return False
        return True

    for block in (downloads.kept, downloads.growing):
        with pytest.raises(KeyError), block("a") as room:
            room(all_of_one)
            assert not is_free()
            raise KeyError
        assert is_free()
        with block("a") as room:
            room(UNHELD)
            assert is_free()
    with downloads.growing("a") as room:
        room(all_of_one)
    assert is_free()
    with downloads.kept("a") as room:
        room(all_of_one)
        room(1)
        downloads.hold("a", UNHELD).release()
        room(all_of_one)
    assert not is_free()
    room.release()
    room.release()
    assert is_free()


def test_a_file_name_is_only_a_name():
    """Paths, quotes, line ends and characters that turn text around do not survive."""
    assert disposition('a"b\r\nX: y.txt') == (
        "attachment; filename=\"a_bX_ y.txt\"; filename*=UTF-8''a%22bX%3A%20y.txt"
    )
    assert "filename*=UTF-8''Gr%C3%BC%C3%9Fe.pdf" in disposition("C:\\x\\Grüße.pdf")
    assert "202" not in disposition("a\u202egpj.exe")
    assert disposition("..") == "attachment; filename=\"attachment\"; filename*=UTF-8''attachment"
