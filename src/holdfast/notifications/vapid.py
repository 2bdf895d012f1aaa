"""The key pair that identifies this installation to push services (VAPID, RFC 8292).

Both keys follow from a value of the shared secret `web-push`, so every process has the same ones. A browser accepts
messages only from the key that it subscribed with.
"""

import time
from base64 import urlsafe_b64encode
from email.utils import parseaddr
from functools import cache
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from msgspec import Struct

from holdfast.runtime.shared_secrets import SecretValue

# Push services accept up to 24 hours.
TOKEN_SECONDS: Final = 12 * 3600
_CURVE: Final = ec.SECP256R1()
# FIPS 186-4: the number of valid private keys of the curve P-256, plus one.
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class VapidKey(Struct, frozen=True):
    """`public` is the key as browsers and push services take it: an uncompressed point in base64."""

    private: ec.EllipticCurvePrivateKey
    public: str

    def headers(self, origin: str, sender: str) -> dict[str, str]:
        """The header that proves to the push service of this origin who sends. `sender` is an address to write to if
        something is wrong."""
        claims = {
            "aud": origin,
            "exp": int(time.time()) + TOKEN_SECONDS,
            "sub": f"mailto:{parseaddr(sender)[1]}",
        }
        token = jwt.encode(claims, self.private, algorithm="ES256")
        return {"Authorization": f"vapid t={token}, k={self.public}"}


@cache
def vapid_key(secret: SecretValue) -> VapidKey:
    private = ec.derive_private_key(int.from_bytes(secret.value, "big") % (_ORDER - 1) + 1, _CURVE)
    point = private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return VapidKey(private, urlsafe_b64encode(point).rstrip(b"=").decode())
