"""Which roles may call an operation."""

from enum import Enum

from holdfast.runtime.credentials import Role


class Access(Enum):
    """The roles that may call an operation. Customers can access only their own bookings, and every caller only their
    own org."""

    PUBLIC = frozenset(Role)  # and callers without a token
    BUYERS = frozenset({Role.ADMIN, Role.SALES, Role.CUSTOMER})
    READERS = frozenset({Role.ADMIN, Role.SALES, Role.REVIEW, Role.CUSTOMER})
    TICKET_READERS = frozenset({Role.ADMIN, Role.SALES, Role.DOOR, Role.CUSTOMER})
    SALES = frozenset({Role.ADMIN, Role.SALES})
    REVIEW = frozenset({Role.ADMIN, Role.REVIEW})
    DOOR = frozenset({Role.ADMIN, Role.DOOR})
    ADMIN = frozenset({Role.ADMIN})

    def __init__(self, roles: frozenset[Role]) -> None:
        # Every request reads this, and an attribute is faster than `value`.
        self.roles = roles
