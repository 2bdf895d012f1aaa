"""All checks, in the order in which they are reported. A new check is a module with one function, and a line here."""

from typing import Final

from holdfast.doctor.audit_check import check_audit
from holdfast.doctor.bus_check import check_bus
from holdfast.doctor.check import Check
from holdfast.doctor.clock_check import check_clock
from holdfast.doctor.connections_check import check_connections
from holdfast.doctor.database_check import check_database
from holdfast.doctor.machine_check import check_machine
from holdfast.doctor.mail_check import check_mail
from holdfast.doctor.payments_check import check_payments
from holdfast.doctor.production_check import check_production
from holdfast.doctor.push_check import check_push
from holdfast.doctor.receipts_check import check_receipts
from holdfast.doctor.redis_check import check_redis
from holdfast.doctor.rights_check import check_rights
from holdfast.doctor.schema_check import check_schema
from holdfast.doctor.settings_check import check_settings
from holdfast.doctor.sms_check import check_sms
from holdfast.doctor.stripe_check import check_stripe
from holdfast.doctor.telegram_check import check_telegram
from holdfast.doctor.worker_check import check_worker

CHECKS: Final = (
    Check("settings", check_settings),
    Check("production", check_production),
    Check("database", check_database),
    Check("schema", check_schema),
    Check("rights", check_rights),
    Check("connections", check_connections),
    Check("clock", check_clock),
    Check("redis", check_redis),
    Check("mail", check_mail),
    Check("sms", check_sms),
    Check("push", check_push),
    Check("bus", check_bus),
    Check("payments", check_payments),
    Check("stripe", check_stripe),
    Check("telegram", check_telegram),
    Check("receipts", check_receipts),
    Check("machine", check_machine),
    Check("worker", check_worker),
    Check("auditor", check_audit),
)
