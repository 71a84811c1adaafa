"""Makes what a loopback SLURM cluster stands on: folders, keys, the user's account and home, the compiled stand-ins."""

from __future__ import annotations

import contextlib
import fcntl
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import slurm_site
from slurm_site import Site

SOURCES = Path(__file__).parents[1] / "services" / "slurm"
FOLDERS = ("etc", "log", "run", "run/munge", "state", "spool", "ssh", "dev", "lib", "bin", "shims", "home", "shared")
PRIVATE = ("database", "munge")
# What a login node prints before a command says anything of its own.
NOISE = """
echo "***** Welcome to the loopback cluster *****"
echo "   Maintenance: every second Tuesday. JobId=0 is not a job."
echo "quota: you use 42% of your space" >&2
"""
BANNER = "Authorized use only. All activity may be monitored.\n"
# A unix socket's name may have 107 characters.
LONGEST_BASE = 80
LOCK = Path(tempfile.gettempdir()) / "prefect-tao-slurm.lock"


def lay_out(site: Site) -> None:
    """Make everything that is not there yet, and write the configuration. Raises ValueError for a useless base."""
    _check_base(site.base)
    for name in (*FOLDERS, *PRIVATE):
        (site.base / name).mkdir(exist_ok=True)
    for name in PRIVATE:
        (site.base / name).chmod(0o700)
    for number in range(site.gpus):
        device = site.base / "dev" / f"nvidia{number}"
        if not device.is_symlink():
            # Slurm takes nothing but character devices for GPUs.
            device.symlink_to("/dev/null")
    _make_user(site)
    _make_keys(site)
    _make_home(site)
    _compile(site, "pyxis.c", "pyxis.so", "-fPIC", "-shared")
    _compile(site, "complete.c", "complete", libraries=("-lslurm",))
    shutil.copyfile(SOURCES / "enroot", site.base / "bin" / "enroot")
    (site.base / "bin" / "enroot").chmod(0o755)
    (site.base / "etc" / "banner").write_text(BANNER)
    slurm_site.write(site)
    site.save()


def uid(site: Site) -> int | None:
    """Of the cluster's account, while there is one."""
    try:
        return pwd.getpwnam(site.user).pw_uid
    except KeyError:
        return None


def remove_user(site: Site) -> None:
    """Its processes must have ended."""
    with _accounts():
        if uid(site) is not None:
            subprocess.run(["userdel", site.user], check=True, env=site.admin_env, capture_output=True)


def _make_user(site: Site) -> None:
    with _accounts():
        if uid(site) is None:
            words = ["useradd", "--no-create-home", "--home-dir", str(site.base / "home"), "--shell", "/bin/bash"]
            # Without PAM, sshd takes an account whose password is "!" for locked; "*" only matches nothing.
            subprocess.run([*words, "--password", "*", site.user], check=True, env=site.admin_env)


@contextlib.contextmanager
def _accounts() -> Iterator[None]:
    """useradd and userdel give up when another one runs."""
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_base(base: Path) -> None:
    if len(str(base)) > LONGEST_BASE or not all(letter.isalnum() or letter in "/._-" for letter in str(base)):
        raise ValueError(f"{base} is too long or has special characters, and sockets below it need a simple name")
    base.mkdir(parents=True, exist_ok=True)
    for folder in (base, *base.parents):
        if not folder.stat().st_mode & 0o001:
            raise ValueError(f"{folder} is closed to other users, so that jobs cannot reach {base}")


def _make_keys(site: Site) -> None:
    folder = site.base / "ssh"
    for name in ("host_key", "key"):
        if not (folder / name).exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"loopback-{name}", "-f"]
            subprocess.run([*words, str(folder / name)], check=True)
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    names = ",".join(f"[{name}]:{site.ssh_port}" for name in ("127.0.0.1", "localhost"))
    (folder / "known_hosts").write_text(f"{names} {host_key}\n")
    munge_key = site.base / "munge" / "key"
    if not munge_key.exists():
        munge_key.touch(mode=0o600)
        munge_key.write_bytes(secrets.token_bytes(128))


def _make_home(site: Site) -> None:
    home = site.base / "home"
    exports = "".join(f"export {name}={value}\n" for name, value in site.login_env.items())
    (home / ".bashrc").write_text(NOISE.lstrip())
    # A login shell would otherwise start with the system's PATH.
    (home / ".profile").write_text(f"{exports}. ~/.bashrc\n")
    (home / ".ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copyfile(site.base / "ssh" / "key.pub", home / ".ssh" / "authorized_keys")
    for file in (site.pyxis_record, site.enroot_calls):
        file.touch()
        file.chmod(0o666)
    # An account that was removed and made again may have got another number.
    for folder in (home, site.base / "shared"):
        subprocess.run(["chown", "-R", f"{site.user}:", str(folder)], check=True)


def _compile(site: Site, source: str, product: str, *flags: str, libraries: tuple[str, ...] = ()) -> None:
    made = site.base / "lib" / product
    if made.exists() and made.stat().st_mtime > (SOURCES / source).stat().st_mtime:
        return
    draft = made.with_suffix(".draft")
    words = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(draft), str(SOURCES / source)]
    subprocess.run([*words, *libraries], check=True)
    draft.rename(made)
