"""Who may act for an org: codes, chats that move, and the commands that connect a bot."""

import pytest

from holdfast.bot.client import connect_bot
from holdfast.bot.telegram_bot import BotDefaults, BotError, disconnect_bot
from holdfast.runtime import db
from tests.support.bot_harness import Agency, agency
from tests.support.harness import Org, query, run_with_connection


def test_an_admin_chat_and_a_channel_are_linked_with_one_time_codes(database: str) -> None:
    with agency(database, connected=False) as found:
        link = found.run_command("bot", "connect", "--org", found.org.slug)
        with found.running_bot():
            found.admin.say(found.staff, "/link WRONGCODE")
            refused = found.wait_for(found.staff, "isn't valid")
            found.admin.say(found.staff, link)
            found.wait_for(found.staff, "now belongs to the staff")
            found.admin.say(found.staff, link)
            found.wait_for(found.staff, "isn't valid", after=refused)
            found.admin.say(found.staff, "/channel")
            how = found.wait_for(found.staff, "Then post this in the channel")
            posted = found.channel.post((how.text or "").splitlines()[-1])
            found.wait_for(found.staff, "Agency shifts")
            found.wait(lambda: posted.deleted)


def test_subscribers_who_see_the_code_of_a_channel_do_not_become_staff(staffed: Agency) -> None:
    staffed.admin.say(staffed.staff, "/channel")
    how = staffed.wait_for(staffed.staff, "Then post this in the channel")
    code = (how.text or "").splitlines()[-1]
    thief = staffed.new_worker(31, "Max")
    thief.start(staffed.account)
    thief.say(staffed.account, code)
    staffed.wait_for(staffed.chat_of(thief), "isn't valid")
    statement = "SELECT admin_chat_id FROM telegram_bot WHERE org_id = $1"
    assert query(staffed.database_url, statement, staffed.org.id)[0]["admin_chat_id"] == staffed.staff.id


def test_another_admin_chat_gets_the_receipts_that_wait(staffed: Agency) -> None:
    event = staffed.add_shift()
    staffed.follow(event)
    ivan = staffed.add_worker(21)
    staffed.take_place(ivan, event)
    before = staffed.send_receipt(ivan)
    code = staffed.run_command("bot", "code", "--org", staffed.org.slug)
    office = staffed.server.group(-5_000_000 - staffed.number, "Office")
    office.add_bot(staffed.account)
    staffed.admin.say(office, f"/link {code}")
    review = staffed.wait_for(office, "Receipt for")
    staffed.wait_for(staffed.staff, "now work from another chat")
    staffed.wait(lambda: before.deleted)
    staffed.admin.press(review, "Approve")
    staffed.wait_for(staffed.chat_of(ivan), "You're in!")


def connect(found: Agency, org: Org, token: str) -> str:
    """As `holdfast bot connect` does."""

    async def run(connection: db.Connection) -> str:
        return await connect_bot(db.Database(connection), org.id, token, found.server.url, BotDefaults())

    return run_with_connection(run, found.database_url)


def disconnect(found: Agency, org: Org) -> None:
    """As `holdfast bot disconnect` does."""
    run_with_connection(lambda connection: disconnect_bot(db.Database(connection), org.id), found.database_url)


def test_a_bot_belongs_to_one_org(database: str) -> None:
    with agency(database, connected=False) as found:
        other = Org(database)
        assert connect(found, found.org, found.token) == found.account.username
        with pytest.raises(BotError, match="belongs to another org"):
            connect(found, other, found.token)
        assert found.run_command("bot", "list") == f"{found.org.slug}\t@{found.account.username}"
        disconnect(found, found.org)
        connect(found, other, found.token)


@pytest.mark.parametrize(
    ("token", "explanation"),
    [("nonsense", "is not a bot token"), ("4242:AAF-somebody-elses", "does not accept this token")],
)
def test_a_wrong_token_is_explained(database: str, token: str, explanation: str) -> None:
    with agency(database, connected=False) as found:
        with pytest.raises(BotError, match=explanation):
            connect(found, found.org, token)
        assert query(database, "SELECT 1 FROM telegram_bot") == []


def test_a_new_token_keeps_the_chats_of_a_bot_and_another_bot_starts_without(database: str) -> None:
    with agency(database) as found:
        new_token = f"{found.bot_id}:AAF-new-token"
        found.server.bots[new_token] = found.account
        found.follow(found.add_shift())
        connect(found, found.org, new_token)
        statement = "SELECT token, admin_chat_id, (SELECT count(*) FROM telegram_event) FROM telegram_bot"
        assert tuple(query(database, statement)[0]) == (new_token, found.staff.id, 1)
        found.server.add_bot("777:AAF-another-bot", "another_bot")
        connect(found, found.org, "777:AAF-another-bot")
        assert tuple(query(database, statement)[0]) == ("777:AAF-another-bot", None, 0)
