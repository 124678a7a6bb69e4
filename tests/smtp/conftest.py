"""Ways to serve SMTP, all of which behave alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from relay.db.pool import Pool
from relay.smtp.trampoline import Trampoline
from tests.smtp.plain import Plain
from tests.smtp.service import Service, serving_by_loaded_processes
from tests.smtp.service import serving as serve


def _served(how: Any) -> Callable[..., AbstractAsyncContextManager[Service]]:
    def made(pool: Pool, **options: Any) -> AbstractAsyncContextManager[Service]:
        if how is serving_by_loaded_processes:
            return how(pool, count=1, **options)
        return serve(pool, scheduling=how(), **options)

    return made


@pytest.fixture(params=[Trampoline, Plain, serving_by_loaded_processes])
def serving(request):
    """Serves on the trampoline, as plain tasks, and in another process."""
    return _served(request.param)


@pytest.fixture(params=[Trampoline, Plain])
def serving_here(request):
    """The same in this process, whose clock, code, log or knowledge of sessions a test needs."""
    return _served(request.param)
