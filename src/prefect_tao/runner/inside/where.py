"""Where a job's results are kept, and where the runner works."""

from __future__ import annotations

import os

from .schemes import bucket_name, bucket_results
from .scratch import scratch


class Where:
    """Where a job's results are kept (`base`), what that is (`kind`: mount, bucket or ephemeral), and where we work."""

    def __init__(self, key: str) -> None:
        root, bucket = os.environ.get("TAO_RESULTS_ROOT"), bucket_name(os.environ.get("S3_BUCKET_NAME", ""))
        if root:
            self.kind, self.base = "mount", os.path.join(os.path.abspath(root), key)
        elif bucket:
            self.kind, self.base = "bucket", bucket_results(bucket, key)
        else:
            self.kind, self.base = "ephemeral", os.path.join("/results", key)
        self.work = self._work_folder(key)
        if self.kind == "ephemeral":
            self.base = self.work

    @property
    def is_remote(self) -> bool:
        return self.kind == "bucket"

    def _work_folder(self, key: str) -> str:
        """Where specs and fetched inputs go: what the platform names, else beside the results, else the own disk."""
        beside = None if self.is_remote else self.base
        for folder in (os.environ.get("TAO_WORK_DIR"), beside, os.path.join("/results", key)):
            try:
                if folder:
                    os.makedirs(folder, exist_ok=True)
                    return os.path.abspath(folder)
            except OSError:
                continue
        if self.is_remote:
            return scratch()
        import tempfile

        return tempfile.mkdtemp(prefix="tao-")

    def not_outputs(self) -> list[str]:
        """The folders that are not outputs of the command even where they lie in one: kept already, or the runner's."""
        if self.kind == "mount":
            return [self.base]
        return [os.path.join(self.work, name) for name in ("inputs", "ptm", "resume", "outputs", "attempts")]
