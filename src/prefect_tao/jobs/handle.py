"""A handle says where a job is, as JSON: any process on any machine can attach to the job with it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.jobs.naming import KEY_PATTERN, JobName


class JobHandle(BaseModel):
    """One attempt of a job on its platform. Two handles are the same job when target and name are.

    `site` is the very engine, cluster or machine that has the job; targets may come to mean another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    key: str = Field(pattern=rf"^{KEY_PATTERN}$")
    attempt: int = Field(ge=1)
    native_id: str = ""
    site: str = ""
    results: str = ""
    digest: str = ""
    labels: dict[str, str] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name that the platform's own object bears."""
        return str(JobName(self.key, self.attempt))

    @property
    def platform(self) -> str:
        """The platform's name, the first part of the target."""
        return self.target.partition("/")[0]

    def __hash__(self) -> int:
        return hash((self.target, self.key, self.attempt))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and (self.target, self.key, self.attempt) == (
            other.target,
            other.key,
            other.attempt,
        )
