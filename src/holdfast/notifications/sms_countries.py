"""Which countries SMS may go to. SMS to some countries cost a hundred times as much as to others."""

import re
from typing import Final

_CODE: Final = re.compile(r"\+[1-9][0-9]{0,6}")


class SmsCountriesError(ValueError):
    def __init__(self, code: str) -> None:
        super().__init__(
            f"{code!r} is not a calling code. List calling codes with commas between them, such as +49,+43."
        )


class SmsCountries:
    """The calling codes in `HOLDFAST_SMS_COUNTRIES`. Without any, SMS may go everywhere."""

    def __init__(self, codes: str | None) -> None:
        self._codes = tuple(_parse(code.strip()) for code in codes.split(",")) if codes else None

    def includes(self, phone: str) -> bool:
        return self._codes is None or phone.startswith(self._codes)


def _parse(code: str) -> str:
    if _CODE.fullmatch(code) is None:
        raise SmsCountriesError(code)
    return code
