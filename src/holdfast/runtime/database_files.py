"""The certificate and key files that the URL of a database names."""

from typing import Final
from urllib.parse import parse_qsl, urlsplit

_FILE_PARAMETERS: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "passfile")


def find_unreadable_file(url: str) -> str | None:
    """A sentence about the first file that this process cannot read. The driver's own error names no file."""
    for parameter, path in parse_qsl(urlsplit(url).query):
        if parameter in _FILE_PARAMETERS:
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                return f"Cannot read the file {path}, which the database URL names as {parameter}: {error.strerror}."
    return None
