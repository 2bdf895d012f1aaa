"""The script that the container of PostgreSQL runs on an empty volume creates the two roles of Holdfast."""

from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.command_line import call_holdfast
from tests.support.harness import Org, example_event, post_hold, publish_event, query, running_server, temporary_folder
from tests.support.postgres_cluster import Cluster

SCRIPT = Path(__file__).parents[2] / "deploy" / "postgres" / "create-roles.sh"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with temporary_folder() as folder:
        cluster = Cluster(folder)
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(cluster.data)


def test_the_owner_migrates_and_the_application_sells_but_cannot_change_the_past(cluster: Cluster) -> None:
    passwords = {"OWNER_PASSWORD": "o'wner", "APPLICATION_PASSWORD": "application"}
    cluster.run(SCRIPT.read_text(), {"POSTGRES_USER": "postgres", **passwords})
    application, owner = (
        f"postgresql://{role}@/holdfast?host={cluster.folder}" for role in ("holdfast", "holdfast_owner")
    )
    assert call_holdfast(application, "migrate", HOLDFAST_MIGRATION_DATABASE_URL=owner).returncode == 0
    with running_server(application, workers=1) as server, server.client(Org(application).headers()) as admin:
        event = publish_event(admin, example_event())
        assert post_hold(admin, event, items=[{"seat": "A-1"}]).status_code == 201
    for forbidden in ("DELETE FROM journal", "UPDATE journal SET kind = kind", "CREATE TABLE mine ()"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            query(application, forbidden)
    roles = query(cluster.url, "SELECT rolname FROM pg_roles WHERE rolname ~ 'holdfast' AND rolsuper")
    assert not roles
    stored = query(
        cluster.url, "SELECT count(*) FROM pg_authid WHERE rolname ~ 'holdfast' AND rolpassword LIKE 'SCRAM%'"
    )
    assert stored[0][0] == 2
