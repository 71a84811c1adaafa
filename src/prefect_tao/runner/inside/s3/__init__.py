"""S3 for the runner: downloads that are verified and can be taken up again, uploads that are never half.

It speaks through boto3 or, where an image has only that, through the aws command. It travels with the program and is
loaded only by jobs that use S3. Here is what the program uses of it.
"""

from .connecting import connect
from .errors import Missing, StorageError
from .fetching import fetch
from .listing import find
from .uploads import send

__all__ = ["Missing", "StorageError", "connect", "fetch", "find", "send"]
