"""The headers that protect a page, and the tokens that protect its forms."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

from holdfast.runtime.shared_secrets import Keyring, SecretValue
from holdfast.web.session import Session

CSP_NONE: Final = "'none'"
_TOKEN_BYTES: Final = 16


def security_headers(policy: str, *, is_https: bool) -> dict[str, str]:
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "same-origin",
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
    }
    if is_https:
        headers["strict-transport-security"] = "max-age=31536000"
    return headers


def content_security_policy(form_targets: str, frame_ancestors: Sequence[str] = (), *, has_scripts: bool = True) -> str:
    """A page loads nothing from other origins. Only its forms may lead there, to a payment provider."""
    scripts = "script-src 'self'; connect-src 'self'; " if has_scripts else ""
    return (
        f"default-src 'none'; {scripts}style-src 'self'; img-src 'self' blob: data:; manifest-src 'self'; "
        f"form-action {form_targets}; base-uri 'none'; frame-ancestors {' '.join(frame_ancestors) or CSP_NONE}"
    )


def form_token(session: Session, secret: SecretValue) -> str:
    """A CSRF token, which proves that we gave this form to this browser.

    Pages are compressed and can repeat a query from their address, so an attacker who sees response sizes could guess
    a fixed token byte by byte (BREACH). A fresh random mask makes the token look different in every response.
    """
    mask = secrets.token_bytes(_TOKEN_BYTES)
    return (mask + _xor(mask, _token(session, secret))).hex()


def is_form_token(text: str, session: Session, keyring: Keyring) -> bool:
    """Forms outlive a change of the secret, as the session does."""
    try:
        sent = bytes.fromhex(text)
    except ValueError:
        return False
    if len(sent) != 2 * _TOKEN_BYTES:
        return False
    token = _xor(sent[:_TOKEN_BYTES], sent[_TOKEN_BYTES:])
    return any(hmac.compare_digest(token, _token(session, secret)) for secret in keyring.values)


def _token(session: Session, secret: SecretValue) -> bytes:
    return hmac.new(secret.value, b"form\0" + session.guest.encode(), hashlib.sha256).digest()[:_TOKEN_BYTES]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
