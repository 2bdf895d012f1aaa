"""The files that people and bots send."""

import hashlib
import secrets
import time
from io import BytesIO
from typing import Any

import msgspec
from PIL import Image

from tests.support.telegram.errors import bad_request, not_found

DOWNLOAD_LIMIT_BYTES = 20 * 1024 * 1024
PHOTO_LIMIT_BYTES = 10 * 1024 * 1024
THUMBNAIL_PIXELS = (90, 320)


class StoredFile(msgspec.Struct, frozen=True):
    id: str
    unique_id: str
    data: bytes
    name: str
    mime_type: str

    def to_wire(self) -> dict[str, Any]:
        return {"file_id": self.id, "file_unique_id": self.unique_id, "file_size": len(self.data)}


class PhotoSize(msgspec.Struct, frozen=True):
    file: StoredFile
    width: int
    height: int

    def to_wire(self) -> dict[str, Any]:
        return {**self.file.to_wire(), "width": self.width, "height": self.height}


class FileStore:
    """Keeps files by id. The same bytes get the same unique id, and a new id each time."""

    def __init__(self) -> None:
        self.path_seconds: float | None = None
        self._files: dict[str, StoredFile] = {}
        self._paths: dict[str, tuple[StoredFile, float]] = {}

    def add(self, data: bytes, name: str, mime_type: str) -> StoredFile:
        unique_id = "AQAD" + hashlib.sha256(data).hexdigest()[:12]
        file = StoredFile("AgACAgIAAxk" + secrets.token_urlsafe(36), unique_id, data, name, mime_type)
        self._files[file.id] = file
        return file

    def add_photo(self, data: bytes) -> tuple[PhotoSize, ...]:
        """All sizes of a photo. The largest is the last one and holds the very bytes."""
        original = self.add(data, "photo.jpg", "image/jpeg")
        try:
            with Image.open(BytesIO(data)) as image:
                width, height = image.size
                small = [self._shrink(image, pixels) for pixels in THUMBNAIL_PIXELS if pixels < max(width, height)]
        except (OSError, Image.DecompressionBombError):
            return (PhotoSize(original, 640, 480),)
        return (*small, PhotoSize(original, width, height))

    def _shrink(self, image: Image.Image, pixels: int) -> PhotoSize:
        thumbnail = image.convert("RGB")
        thumbnail.thumbnail((pixels, pixels))
        file = BytesIO()
        thumbnail.save(file, "JPEG")
        return PhotoSize(self.add(file.getvalue(), "photo.jpg", "image/jpeg"), *thumbnail.size)

    def find(self, file_id: str) -> StoredFile:
        if file_id not in self._files:
            raise bad_request("wrong file_id or the file is temporarily unavailable")
        return self._files[file_id]

    def open_path(self, file_id: str) -> dict[str, Any]:
        """The answer of getFile, with a path to download from."""
        file = self.find(file_id)
        if len(file.data) > DOWNLOAD_LIMIT_BYTES:
            raise bad_request("file is too big")
        folder = "photos" if file.mime_type.startswith("image/") else "documents"
        path = f"{folder}/file_{len(self._paths)}.{file.name.rpartition('.')[2]}"
        self._paths[path] = (file, time.monotonic())
        return {**file.to_wire(), "file_path": path}

    def download(self, path: str) -> StoredFile:
        file, opened_at = self._paths.get(path, (None, 0.0))
        expired = self.path_seconds is not None and time.monotonic() - opened_at >= self.path_seconds
        if file is None or expired:
            raise not_found()
        return file
