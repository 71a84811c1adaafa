"""The way to S3 through boto3."""

from __future__ import annotations

from .errors import Changed, explained
from .ways import LANES, Item, Way, addressing, checksum_of, chunks_of, endpoint, etag_of, region, unchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


class BotoStore(Way):
    """S3 through boto3."""

    def __init__(self, boto3: Any, env: Mapping[str, str], connect_seconds: int = 10, read_seconds: int = 60) -> None:
        super().__init__(6)
        from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]

        settings: dict[str, Any] = {
            "retries": {"max_attempts": 2, "mode": "standard"},
            "max_pool_connections": 2 * LANES,
            "connect_timeout": connect_seconds,
            "read_timeout": read_seconds,
            "s3": {"addressing_style": addressing(env)},
        }
        try:  # every part goes with its MD5, which older storage understands too
            config = Config(
                request_checksum_calculation="when_required", response_checksum_validation="when_required", **settings
            )
        except TypeError:  # a botocore that knows no other checksums
            config = Config(**settings)
        self.place = endpoint(env) or "aws"
        try:
            self.client = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint(env),
                region_name=region(env),
                aws_access_key_id=env.get("AWS_ACCESS_KEY_ID") or env.get("ACCESS_KEY") or None,
                aws_secret_access_key=env.get("AWS_SECRET_ACCESS_KEY") or env.get("SECRET_KEY") or None,
                aws_session_token=env.get("AWS_SESSION_TOKEN") or None,
                config=config,
            )
        except Exception as error:  # an address, a region or keys that cannot be
            raise explained("opening S3", error)

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit, "PageSize": limit}
        )
        return [
            Item(bucket, found["Key"], found["Size"], found["LastModified"].timestamp(), etag_of(found))
            for page in pages
            for found in page.get("Contents", ())
        ]

    def head(self, bucket: str, key: str, **more: Any) -> Item:
        answer = self.client.head_object(Bucket=bucket, Key=key, **more)
        return Item(bucket, key, answer["ContentLength"], answer["LastModified"].timestamp(), etag_of(answer))

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[str, Iterator[bytes]]:
        """A checksum of the object where there is one, and its bytes from `start` to `stop`. Raises Changed."""
        words = {"Bucket": item.bucket, "Key": item.key}
        if item.etag:  # there are stores without
            words["IfMatch"] = '"%s"' % item.etag
        if (start, stop) != (0, item.size):
            words["Range"] = "bytes=%d-%d" % (start, stop - 1)
        with unchanged():
            answer = self.client.get_object(**words)
        if item.etag and etag_of(answer) != item.etag:
            raise Changed
        return checksum_of(answer), chunks_of(answer["Body"])

    def put(self, bucket: str, key: str, data: Any, **more: Any) -> str:
        return checksum_of(self.client.put_object(Bucket=bucket, Key=key, Body=data, **more))

    def begin(self, bucket: str, key: str) -> str:
        return str(self.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, data: Any, **more: Any) -> str:
        words = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": number}
        return etag_of(self.client.upload_part(Body=data, **words, **more))

    def complete(self, bucket: str, key: str, upload: str, parts: list[dict[str, Any]]) -> str:
        words = {"Bucket": bucket, "Key": key, "UploadId": upload}
        return checksum_of(self.client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **words))

    def abort(self, bucket: str, key: str, upload: str) -> None:
        self.client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
