"""Whether receipts can be stored: the check writes a small file, reads it and deletes it."""

import asyncio
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from holdfast.doctor.check import Results, ok, problem, warning
from holdfast.doctor.installation import Installation
from holdfast.doctor.machine_check import find_existing
from holdfast.runtime.extras import MissingExtraError
from holdfast.runtime.storage import Storage, StorageAddressError, StorageError, limit_time, open_storage

# Nobody else's folder: the other owners are orgs, whose ids are longer.
OWNER: Final = "d0c7"
CONTENT: Final = b"holdfast doctor"
SECONDS: Final = 5.0


async def check_receipts(installation: Installation) -> Results:
    settings = installation.settings
    folder = settings.data_dir / "receipts"
    place = "the bucket" if settings.receipts_url else f"the folder {folder}"
    remedy = (
        "Check HOLDFAST_RECEIPTS_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the rights of the key."
        if settings.receipts_url
        else f"Let the user that runs Holdfast write to {folder}, or choose another folder with HOLDFAST_DATA_DIR."
    )
    if not settings.receipts_url and not settings.data_dir.exists():
        if os.access(find_existing(settings.data_dir), os.W_OK | os.X_OK):
            yield ok(f"Holdfast will create {folder}.")
        else:
            yield problem(f"Holdfast cannot create {folder}.", remedy)
        return
    is_new = not folder.exists()
    key = f"{OWNER}/{secrets.token_hex(16)}"
    try:
        storage = open_storage(settings.receipts_url, folder)
        async with limit_time(SECONDS):
            await storage.put(key, CONTENT)
            content = await storage.get(key)
    except MissingExtraError as error:
        yield problem("HOLDFAST_RECEIPTS_URL needs a package.", str(error))
        return
    except (StorageAddressError, StorageError) as error:
        yield problem(f"Receipts cannot be stored in {place}: {error}", remedy)
        return
    is_deleted = await _delete(storage, key)
    if not settings.receipts_url:
        await asyncio.to_thread(_remove_empty, folder / OWNER, folder if is_new else None)
    if content != CONTENT:
        yield problem(f"{place[0].upper()}{place[1:]} returns something other than what was stored.", remedy)
    elif not is_deleted:
        yield warning(
            f"Receipts can be stored in {place}, but not deleted. A file of {len(CONTENT)} bytes stays: {key}.",
            "Delete it yourself. Holdfast itself deletes no receipts.",
        )
    else:
        yield ok(f"Receipts can be stored in {place}.")


async def _delete(storage: Storage, key: str) -> bool:
    try:
        await storage.delete(key)
    except StorageError:
        return False
    return True


def _remove_empty(*folders: Path | None) -> None:
    for folder in folders:
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()
