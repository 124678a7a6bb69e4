from flask import Flask

class Mail:
    def __init__(self, app: Flask) -> None: ...

class Message:
    def __init__(self, subject: str, recipients: list[str], body: str) -> None: ...
