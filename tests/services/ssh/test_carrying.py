"""Results that are carried from a rented machine over ssh: whole, once, and never out of their folder."""

from __future__ import annotations

import os
from pathlib import Path

from ssh_server import ALIAS
from ssh_tools import MakeServer, Reach, folder_of, host

from prefect_tao.platforms.brev.carrying import carry

LYING = """#!/bin/bash
printf '%s  ./good\\0' "$(sha256sum <good | cut -c1-64)"
printf '%064d  ./../outside\\0%064d  .//planted\\0' 0 0
"""


def test_all_files_arrive_and_what_is_here_stays(tmp_path: Path, make_server: MakeServer, reach: Reach) -> None:
    server, there, here = make_server(), tmp_path / "there", tmp_path / "here"
    names = ["epoch_1.pth", "deep/er/x y", "a\nline", "ümlaut"]
    for name in names:
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(name)
    (there / "link").symlink_to("/etc/passwd")
    connection = reach(folder=str(folder_of(tmp_path, server, config=host(ALIAS, server))))
    assert carry(connection, str(there), here) == len(names)
    assert {name: (here / name).read_text() for name in names} == {name: name for name in names}
    assert not (here / "link").exists()
    kept = here / names[0]
    os.utime(kept, (1, 1))
    (there / names[1]).write_text("changed")
    assert carry(connection, str(there), here) == len(names)
    assert (kept.stat().st_mtime, (here / names[1]).read_text()) == (1, "changed")


def test_a_machine_that_lies_about_names_writes_nothing_outside(
    tmp_path: Path, make_server: MakeServer, reach: Reach
) -> None:
    programs, there, here = tmp_path / "bin", tmp_path / "there", tmp_path / "here"
    programs.mkdir()
    there.mkdir()
    (there / "good").write_text("good")
    (tmp_path / "outside").write_text("not yours")
    (programs / "find").write_text(LYING)
    (programs / "find").chmod(0o755)
    server = make_server(SetEnv=f"PATH={programs}:{os.environ['PATH']}")
    connection = reach(folder=str(folder_of(tmp_path, server, config=host(ALIAS, server))))
    assert carry(connection, str(there), here) == 1
    assert [path.name for path in here.rglob("*")] == ["good"]
