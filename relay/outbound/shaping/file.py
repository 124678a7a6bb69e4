"""The file of traffic rules: read at the start, and again on SIGHUP.

Promises
- `rules` are those of the file as it was read last and was right.
- A file that cannot be used changes nothing once one was read: that is said in the log, in one
  line, and the rules of before stay in force.

Fails: `load` with `ConfigError`, for the start.
"""

from __future__ import annotations

from pathlib import Path

from relay.errors import ConfigError
from relay.log import get_logger
from relay.outbound.shaping.rules import Rules, parse

log = get_logger()

SHIPPED = Path(__file__).with_name("shipped.toml")
"""The rules for large providers that come with the relay."""

_MOST_BYTES = 4 << 20


class ShapingFile:
    """The rules of a file."""

    def __init__(self, path: Path, rules: Rules) -> None:
        """For `load` only."""
        self._path = path
        self.rules = rules

    @classmethod
    def load(cls, path: str = "") -> ShapingFile:
        """Read a file, or what is shipped where none is named.  Raises `ConfigError`."""
        found = Path(path) if path else SHIPPED
        return cls(found, _read(found))

    def reload(self) -> None:
        """Read it again."""
        try:
            self.rules = _read(self._path)
        except ConfigError as error:
            log.error("shaping.refused", reason=str(error))  # noqa: TRY400 - says it all
        else:
            log.info("shaping.loaded", providers=len(self.rules.providers))


def _read(path: Path) -> Rules:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"The traffic rules {path} have over {_MOST_BYTES >> 20} MB.")
        text = data.decode()
    except OSError as error:
        raise ConfigError(
            f"RELAY_OUTBOUND__SHAPING is {str(path)!r}, which cannot be read: {error.strerror}."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"The traffic rules {path} are not UTF-8.") from error
    return parse(text, str(path))
