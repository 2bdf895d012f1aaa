"""Whether browsers and push services would accept push messages. The check sends none. Holdfast makes its own keys."""

from holdfast.doctor.check import Results, ok, warning
from holdfast.doctor.installation import Installation
from holdfast.doctor.mail_check import DEFAULT_SENDER


async def check_push(installation: Installation) -> Results:
    settings = installation.settings
    if not settings.web_push:
        return
    is_fine = True
    if installation.is_public and not settings.public_url.startswith("https://"):
        is_fine = False
        yield warning(
            "Browsers offer push messages only on encrypted pages, and the public URL is not encrypted.",
            "Put a proxy with a certificate in front of Holdfast, and set HOLDFAST_PUBLIC_URL to https://….",
        )
    if settings.email_from == DEFAULT_SENDER:
        is_fine = False
        yield warning(
            f"Push services get {DEFAULT_SENDER} as the contact of the sender, and some refuse it.",
            "Set HOLDFAST_EMAIL_FROM to an address of your domain.",
        )
    if is_fine:
        yield ok("Browsers can subscribe to push messages.")
