"""s3://: through boto3 or, where an image has only that, through the aws command."""

from __future__ import annotations

from ...failures import StorageError
from ...packages import package
from .. import Scheme

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .. import Store


class S3(Scheme):
    name, title = "s3", "S3"
    keys = ("ACCESS_KEY", "SECRET_KEY")
    settings = ("S3_ENDPOINT_URL", "CLOUD_REGION", "S3_ADDRESSING_STYLE")
    belonging = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    package, extra = "boto3", "aws"

    def connect(self, env: Mapping[str, str], say: Callable[[str], None], quick: bool = False) -> Store:
        from shutil import which

        made: Store
        boto3, aws = package("boto3"), which("aws")
        if boto3:
            from .client import BotoStore

            made = BotoStore(boto3, env, *((5, 15) if quick else ()))
        elif aws:
            from .awscli import CliStore

            made = CliStore(aws, env)
        else:
            text = "s3:// needs boto3 or the aws command in the image, and it has neither"
            raise StorageError(text, remedy="install one there")
        made.say = say
        return made


SCHEME = S3()
