"""What a buyer reads if their browser sends more cookies, or a longer address, than pages parse."""

from functools import cache
from html import escape
from typing import Final

from starlette.types import Scope

from holdfast.api.call import ApiResponse, Header
from holdfast.i18n.languages import DEFAULT, LANGUAGES
from holdfast.i18n.texts import translate

# In all languages, because the header that names the buyer's language may be the one that is too long.
_PAGE: Final = """<!doctype html>
<html lang="{default}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
{sections}
</html>
"""
_SECTION: Final = '<section lang="{language}"><{heading}>{title}</{heading}><p>{text}</p></section>'
_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-security-policy", b"default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


def accepts_html(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


@cache
def _page() -> bytes:
    others = [language for language in LANGUAGES if language != DEFAULT]
    sections = [_section(DEFAULT, "h1"), *(_section(language, "h2") for language in others)]
    title = escape(translate(DEFAULT, "too_long.title"))
    return _PAGE.format(default=DEFAULT, title=title, sections="\n".join(sections)).encode()


def _section(language: str, heading: str) -> str:
    title, text = (escape(translate(language, f"too_long.{name}")) for name in ("title", "text"))
    return _SECTION.format(language=language, heading=heading, title=title, text=text)


def too_long_page(status: int, *, is_https: bool) -> ApiResponse[object]:
    headers = (*_HEADERS, _HSTS) if is_https else _HEADERS
    return ApiResponse(_page(), status, headers, b"text/html; charset=utf-8")
