"""What a buyer reads if their browser sends more cookies, or a longer address, than pages parse."""

from typing import Final

from starlette.types import Scope

from holdfast.api.call import ApiResponse, Header

# In all languages, because the header that names the buyer's language may be the one that is too long.
_HTML: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sorry, we can't open this page</title>
<h1>Sorry, we can't open this page</h1>
<p>Your browser sent more data than we accept. Clear this site's cookies in your browser's settings, then try again.
If the address of the page is very long, shorten it.</p>
<section lang="es">
<h2>No podemos abrir esta página</h2>
<p>Tu navegador envió más datos de los que aceptamos. Borra las cookies de este sitio en los ajustes del navegador y
vuelve a intentarlo. Si la dirección de la página es muy larga, acórtala.</p>
</section>
</html>
"""
_HEADERS: Final[tuple[Header, ...]] = (
    (b"content-security-policy", b"default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
)
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


def accepts_html(scope: Scope) -> bool:
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])


def too_long_page(status: int, *, is_https: bool) -> ApiResponse[object]:
    headers = (*_HEADERS, _HSTS) if is_https else _HEADERS
    return ApiResponse(_HTML.encode(), status, headers, b"text/html; charset=utf-8")
