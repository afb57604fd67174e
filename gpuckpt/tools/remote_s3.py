"""S3 and whatever speaks like it: big objects in parts, side by side, taken up again."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import s3fs

from gpuckpt.tools.remote_any import AnyDrive

if TYPE_CHECKING:
    from gpuckpt.location import Url
    from gpuckpt.tools.remote import Upload

_MIB: Final = 1 << 20
_SMALLEST: Final = 16 * _MIB
_UNKNOWN: Final = 64 * _MIB  # of an object whose size is not known: 625 GiB at most
_MOST_PARTS: Final = 10_000  # the store's own limits
_MOST_KEYS: Final = 1000
# One that does not answer is given up after three minutes; one that nobody is at, in a second. An
# answer comes only when a part has arrived, so slow lines need the minute, and more for what they
# bring. s3fs tries again what was tried again, and a byte now and then ends no wait of its.
_TRIES: Final = 3
_PATIENCE: Final = 180.0
_SLOWEST: Final = 64 << 10  # bytes a second of each request
_CONFIG: Final = {
    "connect_timeout": 10,
    "read_timeout": 60,
    "retries": {"max_attempts": 0},  # s3fs tries again by itself
    "max_pool_connections": 64,
}


class S3Drive(AnyDrive):
    """A folder of a bucket."""

    def __init__(self, fs: Any, root: str) -> None:  # noqa: ANN401 - fsspec has no types
        """Work below `root`, BUCKET/KEY."""
        super().__init__(fs, root)
        self.bucket, _, self._prefix = self.root.partition("/")

    def key(self, name: str) -> str:
        """Return the whole key of an object."""
        return f"{self._prefix}/{name}" if self._prefix else name

    def limit(self, size: int) -> dict[str, float]:
        """See AnyDrive."""
        return {"timeout": _PATIENCE + size / _SLOWEST}

    def ask(self, method: str, size: int = 0, **more: object) -> Any:  # noqa: ANN401 - its answer
        """Have the store do something that takes so many bytes to it."""
        return self.fs.call_s3(method, Bucket=self.bucket, **more, **self.limit(size))

    def sizes(self) -> dict[str, int]:
        """See Drive."""
        found = super().sizes()
        if not found:  # a bucket that is not there looks as an empty folder does
            try:
                self.ask("head_bucket")
            except FileNotFoundError as why:
                raise OSError(f"there is no bucket {self.bucket}") from why
        return found

    def put(self, name: str, data: bytes) -> None:
        """See Drive."""
        self.ask("put_object", len(data), Key=self.key(name), Body=data)

    def upload(self, name: str, size: int, most: int) -> Upload:
        """See Drive."""
        return _Parts(self, name, size, part_size(size or most))

    def remove_all(self) -> None:
        """See Drive."""
        for key, upload in self.unfinished(self.key("")):
            self.drop(key, upload)
        keys = [self.key(name) for name in self.sizes()]
        for first in range(0, len(keys), _MOST_KEYS):
            gone = {"Objects": [{"Key": key} for key in keys[first : first + _MOST_KEYS]]}
            told = self.ask("delete_objects", Delete=gone)
            for one in told.get("Errors", ()):
                raise OSError(f"{one.get('Key')} could not be removed: {one.get('Message')}")

    def unfinished(self, prefix: str) -> list[tuple[str, str]]:
        """Return keys and ids of uploads that were never finished, the newest last."""
        found: list[tuple[str, str]] = []
        more: dict[str, Any] = {}
        while True:
            page = self.ask("list_multipart_uploads", Prefix=prefix, **more)
            newest = sorted(page.get("Uploads", ()), key=lambda one: one["Initiated"])
            found += [(one["Key"], one["UploadId"]) for one in newest]
            if not page.get("IsTruncated"):
                return found
            more = {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def drop(self, key: str, upload: str) -> None:
        """Have the store forget the parts of an upload."""
        self.ask("abort_multipart_upload", Key=key, UploadId=upload)


class _Parts:
    """One object in parts; one that fits into a part is put at once, by `close`."""

    def __init__(self, drive: S3Drive, name: str, size: int, part: int) -> None:
        self.part = part
        self.there: frozenset[int] = frozenset()
        self._drive = drive
        self._key = drive.key(name)
        self._tags: dict[int, str] = {}
        self._lock = threading.Lock()
        self._id = ""
        self._whole: bytes | None = b"" if size <= self.part else None
        if size > self.part:
            self._take_up(size)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        if offset == 0 and len(data) < self.part:
            self._whole = bytes(data)
            return
        self._begin()
        number = offset // self.part + 1
        told = self._call(
            "upload_part", len(data), PartNumber=number, UploadId=self._id, Body=bytes(data)
        )
        with self._lock:
            self._tags[number] = told["ETag"]

    def close(self) -> None:
        if not self._id:
            whole = self._whole or b""
            self._call("put_object", len(whole), Body=whole)
            return
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in sorted(self._tags.items())]
        self._call("complete_multipart_upload", UploadId=self._id, MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        with suppress(Exception):
            if self._id:
                self._drive.drop(self._key, self._id)

    def _begin(self) -> None:
        with self._lock:
            if not self._id:
                self._id = self._call("create_multipart_upload")["UploadId"]

    def _take_up(self, size: int) -> None:
        """Go on with the newest upload of this key that an earlier run has left."""
        mine = [one for key, one in self._drive.unfinished(self._key) if key == self._key]
        if not mine:
            return
        self._id = mine[-1]
        marker: int | None = 0
        while marker is not None:
            page = self._call("list_parts", UploadId=self._id, PartNumberMarker=marker)
            for one in page.get("Parts", ()):
                offset = (one["PartNumber"] - 1) * self.part
                if one["Size"] == min(self.part, size - offset):
                    self._tags[one["PartNumber"]] = one["ETag"]
            marker = page["NextPartNumberMarker"] if page.get("IsTruncated") else None
        self.there = frozenset((number - 1) * self.part for number in self._tags)

    def _call(self, method: str, size: int = 0, **more: object) -> Any:  # noqa: ANN401
        return self._drive.ask(method, size, Key=self._key, **more)


def part_size(size: int) -> int:
    """Return how large the parts of an object are: the same at every try."""
    if not size:
        return _UNKNOWN
    return max(_SMALLEST, (size // (_MOST_PARTS - 1) // _MIB + 1) * _MIB)


def drive(url: Url) -> S3Drive:
    """Return the bucket of a URL; credentials and endpoint come from where boto looks."""
    fs = s3fs.S3FileSystem(
        config_kwargs=_CONFIG, use_listings_cache=False, skip_instance_cache=True
    )
    fs.retries = _TRIES
    return S3Drive(fs, f"{url.host}/{url.folder}")
