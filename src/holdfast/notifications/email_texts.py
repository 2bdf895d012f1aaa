"""Every word of the letters to buyers, in each language. `{event}`, `{org}` and `{booking}` are filled in."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct


class Kind(StrEnum):
    CONFIRMED = "confirmed"
    EXPIRED = "expired"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    # The booking was taken back, and the money is on its way.
    REFUNDED = "refunded"
    # The money came after the hold had ended and the units were gone; it is paid back.
    LATE_REFUND = "late_refund"
    # More money came than the booking, which stands, had to cost; that is paid back.
    EXTRA_REFUND = "extra_refund"
    # To the new holder.
    TRANSFERRED = "transferred"


class Wording(Struct, frozen=True, kw_only=True):
    """What a letter of one kind says. `then` is what the reader can expect or do; `total` names the sum."""

    subject: str
    heading: str
    lead: str
    then: str
    total: str


class Texts(Struct, frozen=True, kw_only=True):
    """All letters in one language, and the words they share."""

    when: str
    where: str
    booking: str
    reason: str
    subtotal: str
    tax: str
    tickets: str
    footer: str
    kinds: Mapping[Kind, Wording]


ENGLISH: Final = Texts(
    when="When",
    where="Where",
    booking="Booking",
    reason="Reason",
    subtotal="Subtotal",
    tax="Tax",
    tickets="Your tickets are attached. Bring them along, on your phone or on paper.",
    footer="This message was sent automatically: {org} was given this address for booking {booking}.",
    kinds={
        Kind.CONFIRMED: Wording(
            subject="Your booking for {event} is confirmed",
            heading="Your booking is confirmed",
            lead="{org} thanks you for your booking and looks forward to seeing you.",
            then="If you have a question, please contact {org} and give the booking number {booking}.",
            total="Total",
        ),
        Kind.EXPIRED: Wording(
            subject="Your reservation for {event} has expired",
            heading="Your reservation has expired",
            lead="The time to complete it has run out, and what you had chosen is free for others again.",
            then=(
                "If a payment of yours is still on its way, there is nothing you need to do: you will get either your "
                "booking after all or your money back, and we will write to you. You are welcome to book again."
            ),
            total="Total",
        ),
        Kind.REJECTED: Wording(
            subject="Your booking for {event} was not accepted",
            heading="Your booking was not accepted",
            lead="{org} has looked at your booking and could not accept it. What you had chosen has been released.",
            then="If you think that this is a mistake, please contact {org} and give the booking number {booking}.",
            total="Total",
        ),
        Kind.CANCELLED: Wording(
            subject="Your booking for {event} was cancelled",
            heading="Your booking was cancelled",
            lead="This booking and any tickets for it are no longer valid.",
            then="If you did not expect this, please contact {org} and give the booking number {booking}.",
            total="Total",
        ),
        Kind.REFUNDED: Wording(
            subject="Your booking for {event} is being refunded",
            heading="Your money is on its way back",
            lead="Your booking has been taken back and is being refunded. Any tickets for it are no longer valid.",
            then="Depending on your bank, it can take some days until the money arrives.",
            total="You get back",
        ),
        Kind.EXTRA_REFUND: Wording(
            subject="You paid twice for {event}: we are refunding one payment",
            heading="One payment is on its way back",
            lead="We received more than one payment for your booking. One is enough: your booking stands as it is.",
            then="You get the other one back. Depending on your bank, it can take some days until the money arrives.",
            total="You get back",
        ),
        Kind.LATE_REFUND: Wording(
            subject="Your payment for {event} is being refunded",
            heading="Your money is on its way back",
            lead=(
                "Your payment reached us after your reservation had ended, and we could not give you back what you had "
                "chosen. We are sorry. You get back all that you paid."
            ),
            then="Depending on your bank, it can take some days until the money arrives.",
            total="You get back",
        ),
        Kind.TRANSFERRED: Wording(
            subject="A booking for {event} is now yours",
            heading="This booking is now yours",
            lead="A booking was handed over to you. {org} looks forward to seeing you.",
            then="From now on only your tickets are valid; any that were issued for this booking before are not.",
            total="Total",
        ),
    },
)

SPANISH: Final = Texts(
    when="Cuándo",
    where="Dónde",
    booking="Reserva",
    reason="Motivo",
    subtotal="Subtotal",
    tax="Impuestos",
    tickets="Adjuntamos tus entradas. Llévalas contigo, en el teléfono o en papel.",
    footer="Este mensaje es automático: {org} recibió esta dirección para la reserva {booking}.",
    kinds={
        Kind.CONFIRMED: Wording(
            subject="Tu reserva para {event} está confirmada",
            heading="Tu reserva está confirmada",
            lead="{org} te agradece la reserva y te espera.",
            then="Si tienes alguna pregunta, comunícate con {org} e indica el número de reserva {booking}.",
            total="Total",
        ),
        Kind.EXPIRED: Wording(
            subject="Tu reserva para {event} ha vencido",
            heading="Tu reserva ha vencido",
            lead="El plazo para completarla terminó, y lo que habías elegido vuelve a estar disponible para otros.",
            then=(
                "Si hiciste un pago que aún está en camino, no tienes que hacer nada: recibirás tu reserva o la "
                "devolución de tu dinero, y te escribiremos. Puedes volver a reservar cuando quieras."
            ),
            total="Total",
        ),
        Kind.REJECTED: Wording(
            subject="Tu reserva para {event} no fue aceptada",
            heading="Tu reserva no fue aceptada",
            lead="{org} revisó tu reserva y no pudo aceptarla. Lo que habías elegido quedó liberado.",
            then="Si crees que se trata de un error, comunícate con {org} e indica el número de reserva {booking}.",
            total="Total",
        ),
        Kind.CANCELLED: Wording(
            subject="Tu reserva para {event} fue cancelada",
            heading="Tu reserva fue cancelada",
            lead="Esta reserva y sus entradas, si las había, ya no son válidas.",
            then="Si no lo esperabas, comunícate con {org} e indica el número de reserva {booking}.",
            total="Total",
        ),
        Kind.REFUNDED: Wording(
            subject="Estamos devolviendo el dinero de tu reserva para {event}",
            heading="Tu dinero va de regreso",
            lead="Tu reserva quedó anulada y te devolvemos el dinero. Sus entradas, si las había, ya no son válidas.",
            then="Según tu banco, el dinero puede tardar algunos días en llegar.",
            total="Te devolvemos",
        ),
        Kind.EXTRA_REFUND: Wording(
            subject="Pagaste dos veces para {event}: te devolvemos un pago",
            heading="Un pago va de regreso",
            lead="Recibimos más de un pago para tu reserva. Con uno basta: tu reserva sigue en pie.",
            then="Te devolvemos el otro. Según tu banco, el dinero puede tardar algunos días en llegar.",
            total="Te devolvemos",
        ),
        Kind.LATE_REFUND: Wording(
            subject="Estamos devolviendo tu pago para {event}",
            heading="Tu dinero va de regreso",
            lead=(
                "Tu pago nos llegó cuando tu reserva ya había terminado, y no pudimos volver a darte lo que habías "
                "elegido. Lo sentimos. Te devolvemos todo lo que pagaste."
            ),
            then="Según tu banco, el dinero puede tardar algunos días en llegar.",
            total="Te devolvemos",
        ),
        Kind.TRANSFERRED: Wording(
            subject="Una reserva para {event} ahora es tuya",
            heading="Esta reserva ahora es tuya",
            lead="Te cedieron una reserva. {org} te espera.",
            then="Desde ahora solo valen tus entradas; las que se emitieron antes para esta reserva ya no son válidas.",
            total="Total",
        ),
    },
)

TEXTS: Final[Mapping[str, Texts]] = {"en": ENGLISH, "es": SPANISH}

# Reasons that are the engine's own. What a person wrote stays as it is.
_REASONS: Final[Mapping[str, Mapping[str, str]]] = {
    "es": {
        "The event was cancelled.": "El evento fue cancelado.",
        "The receipt was not reviewed in time.": "El comprobante no se revisó a tiempo.",
        "The payment was refunded by the provider.": "El proveedor de pagos devolvió el pago.",
    },
}


def reason_in(language: str, reason: str | None) -> str | None:
    return reason if reason is None else _REASONS.get(language, {}).get(reason, reason)
