"""Which credentials a launch needs, and which of them are missing. Values are looked at, never repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect_tao.catalog.nouns import Catalog, CredentialGroup
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.storage.known_schemes import everything, opening

SSH_KEY = "SSH_KEY_PATH"
SSH_SETTINGS = ("SLURM_KNOWN_HOSTS", "SLURM_SSH_PORT")
HIDDEN = "[hidden]"
# Shorter values are common words or numbers: hiding them would garble a text without protecting anything.
SHORTEST_HIDDEN = 6

SSH_REMEDY = """give SSH_KEY_PATH, the private key that opens the login host without a password. If there is none yet:
  1. make one: ssh-keygen -t ed25519 -N "" -f ~/.ssh/id_ed25519
  2. let the cluster know it: ssh-copy-id -i ~/.ssh/id_ed25519.pub <SLURM_USER>@<login-host>
  3. trust the host: ssh-keyscan -H <login-host> >> ~/.ssh/known_hosts
  4. keep the key to yourself: chmod 600 ~/.ssh/id_ed25519
  5. try it: ssh -o BatchMode=yes -i ~/.ssh/id_ed25519 <SLURM_USER>@<login-host> hostname
Then launch again with SSH_KEY_PATH=~/.ssh/id_ed25519"""


@dataclass(frozen=True)
class Need:
    """One thing a person has to supply: one of `names`, the preferred one first."""

    names: tuple[str, ...]
    why: str
    description: str = ""
    how_to_get: str = ""

    @property
    def preferred(self) -> str:
        """The name to ask for."""
        return self.names[0]

    @property
    def is_ssh(self) -> bool:
        """Whether this is the key to a login host."""
        return SSH_KEY in self.names

    def met(self, credentials: Mapping[str, str]) -> str | None:
        """The name under which it was supplied."""
        return next((name for name in self.names if is_set(credentials, name)), None)


def is_set(credentials: Mapping[str, str], name: str) -> bool:
    """Whether there is a value; an empty one is none."""
    return bool(credentials.get(name, "").strip())


# -- what is needed ----------------------------------------------------------------------------------------------------


def platform_needs(catalog: Catalog, platform: str, uris: Iterable[str] = ()) -> list[Need]:
    """What `platform` requires: its own credentials, one of each group, and the keys of the storage that is used.

    The other optional ones have defaults, so they are never asked for.
    """
    entry = catalog.platforms[platform]
    needs = [_need(catalog, name, f"{platform} requires it") for name in entry.required]
    needs += [_group_need(catalog, group, platform) for group in entry.groups]
    asked = {need.preferred for need in needs}
    for scheme in opening(uris):
        why = f"a location at {scheme.name}:// is used"
        needs += [_need(catalog, name, why) for name in scheme.keys if name not in asked]
    return needs


def model_needs(catalog: Catalog, model: str, also: Iterable[str] = ()) -> list[Need]:
    """What the model requires on any platform, and what the request names besides."""
    entry = catalog.models.get(model)
    own = dict.fromkeys(entry.credentials if entry else (), f"{model} requires it")
    return [_need(catalog, name, why) for name, why in {**dict.fromkeys(also, "the job asks for it"), **own}.items()]


def _need(catalog: Catalog, name: str, why: str) -> Need:
    entry = catalog.credentials.get(name)
    if entry:
        return Need((name,), why, entry.description, entry.how_to_get)
    return Need((name,), why)


def _group_need(catalog: Catalog, group: CredentialGroup, platform: str) -> Need:
    names = (group.preferred, *(name for name in group.one_of if name != group.preferred))
    entry = catalog.credentials.get(group.preferred)
    return Need(
        names,
        f"{platform} requires it",
        group.description or (entry.description if entry else ""),
        group.how_to_get or (entry.how_to_get if entry else ""),
    )


# -- what is missing ---------------------------------------------------------------------------------------------------


def missing(needs: Sequence[Need], credentials: Mapping[str, str]) -> list[Need]:
    """Those that nothing was supplied for."""
    return [need for need in needs if not need.met(credentials)]


def need_findings(
    needs: Sequence[Need], credentials: Mapping[str, str], supply: Callable[[str], str] | None = None
) -> list[Finding]:
    """One finding per need, missing or not; `supply` says how a name is given where it is missing."""
    return [_finding(need, credentials, supply or _supply) for need in needs]


def conditional_findings(catalog: Catalog, model: str, credentials: Mapping[str, str]) -> list[Finding]:
    """What the model needs only sometimes, as information: whether it does is not known before it runs."""
    entry = catalog.models.get(model)
    return [
        Finding(
            level=Level.OK,
            subject=f"credential {name}",
            message=f"{name} is {'set' if is_set(credentials, name) else 'not set'}; needed only when: {condition}",
        )
        for name, condition in (entry.conditional_credentials if entry else {}).items()
    ]


def _finding(need: Need, credentials: Mapping[str, str], supply: Callable[[str], str]) -> Finding:
    subject = f"credential {need.preferred}"
    if found := need.met(credentials):
        if found == SSH_KEY and not Path(credentials[SSH_KEY].strip()).expanduser().is_file():
            message = f"{SSH_KEY}: the file it names does not exist here"
            return Finding(level=Level.FAIL, subject=subject, message=message, remedy=SSH_REMEDY)
        return Finding(level=Level.OK, subject=subject, message=f"{found} is set")
    remedy = _missing_remedy(need, supply)
    return Finding(level=Level.FAIL, subject=subject, message=_missing_message(need, credentials), remedy=remedy)


def _missing_message(need: Need, credentials: Mapping[str, str]) -> str:
    empty = [name for name in need.names if name in credentials]
    how = f"{need.preferred} is missing"
    if empty:
        how = f"{empty[0]} is set to an empty string, which counts as missing"
    about = f" ({_sentence(need.description)})" if need.description else ""
    return f"{how}: {need.why}{about}"


def _missing_remedy(need: Need, supply: Callable[[str], str]) -> str:
    if need.is_ssh:
        return SSH_REMEDY
    how = supply(need.preferred)
    return f"{_sentence(need.how_to_get)}; then {how}" if need.how_to_get else how


def _supply(name: str) -> str:
    return f"set {name} where the launch runs, or save it as a Prefect Secret block named {secret_block(name)}"


def _sentence(text: str) -> str:
    return text.strip().removesuffix(".")


# -- what must not be seen ---------------------------------------------------------------------------------------------


def hide_values(catalog: Catalog, credentials: Mapping[str, str], findings: Iterable[Finding]) -> list[Finding]:
    """The findings without any secret value, in case a platform's own words repeated one."""
    secrets = [value for value in secret_values(catalog, credentials).values() if len(value) >= SHORTEST_HIDDEN]
    secrets.sort(key=len, reverse=True)  # a value that holds another one goes first, else its rest stays
    return [_hidden(finding, secrets) for finding in findings]


def secret_values(catalog: Catalog, credentials: Mapping[str, str]) -> dict[str, str]:
    """The credentials that must not be shown; what the catalog does not know counts as one."""
    shown = {name for name, entry in catalog.credentials.items() if not entry.secret}
    shown |= {*SSH_SETTINGS, *(name for scheme in everything() for name in scheme.settings)}
    return {name: value for name, value in credentials.items() if name not in shown}


def _hidden(finding: Finding, secrets: Sequence[str]) -> Finding:
    changed = {}
    for field in ("message", "evidence", "remedy"):
        text = kept = getattr(finding, field)
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        if text != kept:
            changed[field] = text
    return finding.model_copy(update=changed) if changed else finding


def secret_block(name: str) -> str:
    """The name under which a secret is looked for among Prefect's Secret blocks: NGC_KEY as ngc-key."""
    return name.lower().replace("_", "-")
