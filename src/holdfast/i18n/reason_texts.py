"""Why a booking or a payment ended the way it did, in the reader's language."""

from holdfast.i18n.texts import section


def reason_text(language: str, reason: str) -> str:
    """Translate a reason code of the engine. A reason that a person typed stays as it is."""
    return section(language, "reason").get(reason, reason)
