"""Whether the SMS provider accepts the account. The check reads the account, and sends nothing."""

from holdfast.doctor.check import Results, ok, problem
from holdfast.doctor.installation import Installation
from holdfast.notifications.channel import UndeliveredError
from holdfast.notifications.twilio import Twilio


async def check_sms(installation: Installation) -> Results:
    url = installation.settings.sms_url
    if url is None:
        return
    try:
        provider = Twilio(url)
    except ValueError as error:
        yield problem(f"HOLDFAST_SMS_URL is not usable. {error}", "Correct it.")
        return
    try:
        await provider.check_account()
    except UndeliveredError as error:
        yield problem(
            f"Holdfast cannot send SMS: {error}.",
            "Check the account and the token in HOLDFAST_SMS_URL, and that this machine may connect to the provider.",
        )
    else:
        yield ok("The SMS provider accepts the account.")
    finally:
        await provider.close()
