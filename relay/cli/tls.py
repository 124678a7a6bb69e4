"""`relay tls`: certificates for the relay's own ports."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import exits, options, output


@click.group()
def tls() -> None:
    """Certificates for the relay's own ports."""


@tls.command("self-signed")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    show_default="tls in the data directory",
    metavar="DIR",
    help="Where cert.pem and key.pem are written.",
)
@options.config
@options.data_dir
@options.as_json
def self_signed(out: Path | None, config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Make a certificate for development, signed by itself alone.

    It is for localhost, this relay's domains, 127.0.0.1 and ::1.  One that was made so before is
    replaced; a certificate that somebody has signed is not, nor its key.
    """
    from relay import files
    from relay import self_signed as making
    from relay.settings import as_environment, load

    domains = load(config=config).smtp.domains
    names = tuple(dict.fromkeys(("localhost", *domains, "127.0.0.1", "::1")))
    where = (out or data_dir / "tls").absolute()
    cert, key = where / "cert.pem", where / "key.pem"
    there = [str(path) for path in (cert, key) if path.exists()]
    if there and not making.is_self_signed(cert):
        raise exits.Failure(
            f"{' and '.join(there)}: that is there, and not self-signed; name another --out.",
            exits.REFUSED,
        )
    made, secret = making.self_signed(names)
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(key, secret)
        files.replace(cert, made)
    except OSError as error:
        raise exits.Failure(
            f"{where} cannot be written to: {error.strerror}.", exits.REFUSED
        ) from error
    settings = {
        as_environment("smtp.tls_cert"): str(cert),
        as_environment("smtp.tls_key"): str(key),
    }
    if as_json:
        output.document({"names": names, "days": making.DAYS, "settings": settings})
        return
    for name, value in settings.items():
        output.say(f"{name}={value}")
    output.note(f"for {', '.join(names)}; {making.DAYS} days. Set both, and start the relay again")
