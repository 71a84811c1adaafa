"""Archives: inputs that arrive packed."""

from __future__ import annotations

import os

from .atomic import part_of, rename_once
from .failures import RunnerError, advised
from .paths import refuse_outside

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def is_archive(path: str) -> bool:
    return path.lower().endswith(ARCHIVES)


def stem(path: str) -> str:
    """The file name of an archive without its ending: images.tar.gz is unpacked as images."""
    name = os.path.basename(path)
    for ending in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpack(archive: str, home: str) -> str:
    """Unpack a tar or zip file below `home`; a member that would leave it, and every link or device, is refused.

    What an archive of another size or time has left there is not what this one holds, and goes.
    """
    import shutil

    facts = os.stat(archive)
    mark = "%x-%x" % (facts.st_size, facts.st_mtime_ns)
    folder = os.path.join(home, mark, stem(archive))
    if os.path.isdir(folder):
        return folder
    for other in os.listdir(home) if os.path.isdir(home) else ():
        if other != mark:
            shutil.rmtree(os.path.join(home, other), ignore_errors=True)
    temporary = part_of(folder)
    os.makedirs(temporary)
    try:
        _unpack_zip(archive, temporary) if archive.lower().endswith(".zip") else _unpack_tar(archive, temporary)
        # An archive of one folder with the archive's own name unpacks to that folder, not to a folder in a folder.
        inner = os.path.join(temporary, os.path.basename(folder))
        alone = os.listdir(temporary) == [os.path.basename(folder)] and os.path.isdir(inner)
        rename_once(inner if alone else temporary, folder)
    except RunnerError:
        raise
    except Exception as error:  # tarfile, zipfile, zlib and lzma each have errors of their own
        raise RunnerError("inputs", "cannot unpack %s: %s" % (archive, advised(error)))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _unpack_zip(archive: str, folder: str) -> None:
    import zipfile

    with zipfile.ZipFile(archive) as source:
        for info in source.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise RunnerError("inputs", "%s holds a link (%s); links are refused" % (archive, info.filename))
            refuse_outside(archive, folder, info.filename)
        source.extractall(folder)


def _unpack_tar(archive: str, folder: str) -> None:
    import tarfile

    with tarfile.open(archive) as source:
        source.extraction_filter = lambda member, _: member  # the checks below stand for Python's own
        for member in source:
            if not (member.isfile() or member.isdir()):
                raise RunnerError("inputs", "%s holds a link or device (%s); refused" % (archive, member.name))
            refuse_outside(archive, folder, member.name)
            member.mode = (member.mode or 0o644) & 0o777 | 0o600 | (0o100 if member.isdir() else 0)
            member.uid = member.gid = -1  # its owner is the job
            member.uname = member.gname = ""
            source.extract(member, folder)
        while source.fileobj and source.fileobj.read(1 << 20):
            pass  # only at its very end does a compressed stream show whether it is whole
