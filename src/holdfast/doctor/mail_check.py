"""Whether the mail server accepts our login. The check sends no message."""

from typing import Final

from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.smtp import Smtp, SmtpUrlError

DEFAULT_SENDER: Final = "tickets@localhost"
SECONDS: Final = 5.0


async def check_mail(installation: Installation) -> Results:
    settings = installation.settings
    if settings.smtp_url is None:
        yield ok("No mail server is set, so Holdfast sends no emails.")
        return
    try:
        login = await Smtp(settings.smtp_url).log_in(SECONDS)
    except SmtpUrlError as error:
        yield problem(str(error), "Correct HOLDFAST_SMTP_URL.")
        return
    except UndeliveredError as error:
        yield problem(str(error), "Correct HOLDFAST_SMTP_URL, or ask whoever runs the mail server.")
        return
    is_secure = login.is_encrypted or login.is_local
    if login.user is not None and not is_secure:
        yield warning(
            "Holdfast sends the password to the mail server without encryption.",
            "Use smtps://…, or smtp://… with ?starttls=required.",
        )
    else:
        encryption = "encrypted" if login.is_encrypted else "not encrypted"
        yield ok(f"The mail server accepts {'the login' if login.user else 'connections'}. It is {encryption}.")
    if settings.email_from == DEFAULT_SENDER:
        yield warning(
            f"Emails come from {DEFAULT_SENDER}, which other mail servers refuse.",
            "Set HOLDFAST_EMAIL_FROM to an address of your domain.",
        )
