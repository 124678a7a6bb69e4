"""The operator's own ingest filter: an aiosmtpd handler class, named `module:Class`.

The class is built without arguments, and may have these hooks, all of them coroutines, with the
arguments that aiosmtpd documents:

    handle_HELO(server, session, envelope, hostname)
    handle_EHLO(server, session, envelope, hostname, responses)     or, older, without responses
    handle_MAIL(server, session, envelope, address, options)
    handle_RCPT(server, session, envelope, address, options)        only for live mailboxes
    handle_DATA(server, session, envelope)                          envelope.content: the message

Each returns "250 …" to agree, or the reply to give instead; handle_EHLO returns the responses, of
which one that is not a 250 refuses.  What is no SMTP reply becomes 451.

A filter decides; it alters nothing.  `session` and `envelope` are aiosmtpd's own classes and
last as long as the session and the transaction do, so a hook may keep things on them, but what is
stored is what the client sent.  `server` has `hostname`, `data_size_limit` and `loop`.  Other
hooks (AUTH, VRFY, PROXY, handle_exception …) are not called.

Fails with `ConfigError`, one sentence, when the class cannot be had.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from typing import Any

from relay.errors import ConfigError

HOOKS = ("HELO", "EHLO", "MAIL", "RCPT", "DATA")


@dataclass(frozen=True)
class FilterClass:
    """A loaded filter: how it is called in the settings, what builds it, which hooks it has."""

    name: str
    build: type[Any]
    hooks: frozenset[str]


def load(name: str) -> FilterClass:
    """Import the class that `module:Class` names, from the path or the working directory."""
    module_name, _, class_name = name.partition(":")
    where = os.getcwd()
    if where not in sys.path:
        # The installed `relay` program does not look where it was started, as `python -m` does.
        sys.path.append(where)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"smtp.filter: the module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error}); put it on PYTHONPATH or correct the setting"
        ) from error
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ConfigError(f"smtp.filter: the module {module_name!r} has no class {class_name!r}")
    hooks = frozenset(hook for hook in HOOKS if hasattr(found, f"handle_{hook}"))
    if not hooks:
        raise ConfigError(
            f"smtp.filter: {name} has none of the hooks "
            + ", ".join(f"handle_{hook}" for hook in HOOKS)
        )
    for hook in sorted(hooks):
        if not inspect.iscoroutinefunction(getattr(found, f"handle_{hook}")):
            raise ConfigError(f"smtp.filter: handle_{hook} of {name} must be an async method")
    return FilterClass(name, found, hooks)
