"""The email with the link to a guest's bookings."""

from email.message import EmailMessage

from msgspec import Struct

from holdfast.i18n.languages import language_of
from holdfast.i18n.texts import translate
from holdfast.notifications.emails import build_message, templates


class RecoveryEmail(Struct, frozen=True, kw_only=True):
    """The facts of the email. `message_id` stays the same when a worker sends the email again."""

    language: str
    to: str
    org_name: str
    link: str
    valid_minutes: int
    message_id: str


class RecoveryContent(Struct, frozen=True, kw_only=True):
    """Everything that a reader sees. Fields that `emails.EmailContent` also has share its names."""

    language: str
    org: str
    subject: str
    heading: str
    lead: str
    button: str
    link_label: str
    link: str
    next_step: str
    footer: str
    is_good_news: bool = True


def compose_recovery(email: RecoveryEmail, sender: str) -> EmailMessage:
    """Build the message to send. Raises `UndeliveredError` if an address is unusable."""
    content = _describe(email)
    return build_message(
        org=content.org,
        sender=sender,
        to=email.to,
        subject=content.subject,
        message_id=email.message_id,
        language=content.language,
        text=templates.get_template("recovery.txt").render(email=content),
        html=templates.get_template("recovery.html").render(email=content),
    )


def _describe(email: RecoveryEmail) -> RecoveryContent:
    language = language_of(email.language)
    org = " ".join(email.org_name.split())

    def text(key: str) -> str:
        return translate(language, f"recovery_email.{key}", org=org, minutes=email.valid_minutes)

    return RecoveryContent(
        language=language,
        org=org,
        subject=text("subject"),
        heading=text("heading"),
        lead=text("lead"),
        button=text("button"),
        link_label=text("link"),
        link=email.link,
        next_step=text("next"),
        footer=text("footer"),
    )
