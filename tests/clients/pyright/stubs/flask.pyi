from contextlib import AbstractContextManager
from typing import Any

class Config(dict[str, Any]): ...

class Flask:
    config: Config
    extensions: dict[str, Any]
    def __init__(self, import_name: str) -> None: ...
    def app_context(self) -> AbstractContextManager[object]: ...
