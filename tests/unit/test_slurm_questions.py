"""The scripts for a login node, run here with programs that say what SLURM's would on a bad day."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import slurm_at

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.markers import UNNAMED
from prefect_tao.platforms.slurm import layout, probes
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.observe import Wanted, look_question
from prefect_tao.platforms.slurm.questions import MANY, Answer, assignments, program, question, read_answer, source
from prefect_tao.platforms.slurm.queue import COLUMNS
from prefect_tao.platforms.slurm.submit import Conversion, find_question, read_jobs, submit_question

KEY = "0123456789abcdef"
NAME = f"tao-{KEY}-1"
OTHER = "tao-fedcba9876543210-1"
Said = list[tuple[str, list[str]]]


class Node:
    """A login node: a base folder, and programs of SLURM that do what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, Layout(str(folder / "base"))
        self.bin = folder / "bin"
        for path in (self.bin, Path(self.place.jobs)):
            path.mkdir(parents=True)

    def program(self, name: str, body: str) -> None:
        """Let a program note its arguments and do `body`."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >>{self.folder}/{name}.calls\n{body}\n')
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, script: str, **env: str) -> str:
        given = {"PATH": f"{self.bin}:{os.environ['PATH']}", "USER": "me", "HOME": str(self.folder), **env}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc"], input=script, env=given, capture_output=True, text=True
        )
        return done.stdout

    def ask(self, script: str, **env: str) -> Said:
        """The records of the answer to a question."""
        return read_answer(self.run(script, **env)).records

    def submit(self, *names: str) -> Said:
        incoming = Path(self.place.jobs) / ".incoming-x"
        incoming.mkdir()
        with tarfile.open(incoming / "batch.tgz", "w:gz") as archive:
            for name in names:
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o700
                archive.addfile(folder)
                for file, text in {
                    layout.HANDLE: '{"digest": "new"}',
                    layout.SCRIPT: "true",
                    "secrets.json": "{}",
                }.items():
                    info = tarfile.TarInfo(f"{name}/{file}")
                    info.size = len(text)
                    archive.addfile(info, io.BytesIO(text.encode()))
        return self.ask(submit_question(self.place, str(incoming), dict.fromkeys(names), Conversion("cpu", 30, 32), 30))

    def job(self, name: str, age: float = 3600, **files: str) -> Path:
        folder = Path(self.place.jobs) / name
        folder.mkdir()
        for file, text in {"handle.json": '{"digest": "old"}', **files}.items():
            (folder / file.replace("_", ".")).write_text(text)
        staged = time.time() - age
        os.utime(folder / layout.HANDLE, (staged, staged))
        return folder


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.program("squeue", "")
    node.program("sbatch", "echo 17")
    node.program("sacct", "")
    node.program("scontrol", "echo ClusterName = polar")
    return node


def words_of(word: str, said: Said) -> list[str]:
    """The first fields of all records of this word."""
    return [fields[0] for each, fields in said if each == word]


# -- submit ------------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_and_its_id_noted(node: Node) -> None:
    assert ("id", [NAME, "17"]) in node.submit(NAME)
    assert (Path(node.place.jobs) / NAME / layout.ID).read_text() == "17"
    assert node.calls("squeue") == []


@pytest.mark.parametrize(
    "words",
    [
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Message receive failure",
        "Batch job submission failed: Unexpected message received",
        "Batch job submission failed: Insane message length",
        "Batch job submission failed: Unspecified error",
        "Batch job submission failed: Slurm backup controller in standby mode",
        "Batch job submission failed: Zero Bytes were transmitted or received",
        "Batch job submission failed: Slurm temporarily unable to accept job, sleeping and retrying",
        "Batch job submission failed: Protocol authentication error",
        "If munged is up, restart with --num-threads=10",
        "",
    ],
)
def test_what_is_no_refusal_leaves_the_job_in_doubt(node: Node, words: str) -> None:
    node.program("sbatch", f"echo {json.dumps(words)} >&2; exit 1")
    assert words_of("doubt", node.submit(NAME)) == [NAME]
    assert (Path(node.place.jobs) / NAME).is_dir()


REFUSED = "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1"


def test_a_refusal_that_the_queue_confirms_leaves_nothing(node: Node) -> None:
    node.program("sbatch", REFUSED)
    _, (refused, (name, words)) = node.submit(NAME)
    assert (refused, name, "invalid partition" in words) == ("refused", NAME, True)
    assert not (Path(node.place.jobs) / NAME).exists()


def test_a_refused_job_that_the_queue_shows_as_failed_is_refused(node: Node) -> None:
    node.program("sbatch", REFUSED)
    node.program(
        "squeue", f'case "$*" in *" -t all "*) echo 17 {NAME} {node.place.jobs}/{NAME}/{layout.SCRIPT} ;; esac'
    )
    assert words_of("refused", node.submit(NAME)) == [NAME]


def test_a_refusal_that_the_queue_cannot_confirm_is_doubt(node: Node) -> None:
    node.program("sbatch", REFUSED)
    node.program("squeue", "exit 1")
    assert words_of("doubt", node.submit(NAME)) == [NAME]
    assert (Path(node.place.jobs) / NAME).is_dir()


def test_a_refusal_of_a_job_that_the_queue_has_is_none(node: Node) -> None:
    node.program("sbatch", REFUSED)
    node.program("squeue", f"echo 17 {NAME} {node.place.jobs}/{NAME}/{layout.SCRIPT}")
    assert ("id", [NAME, "17"]) in node.submit(NAME)


def test_a_refusal_of_a_job_that_has_claimed_its_name_is_none(node: Node) -> None:
    node.program("sbatch", f"ln -s 17 {node.place.jobs}/{NAME}/{layout.CLAIM}; {REFUSED}")
    assert ("id", [NAME, "17"]) in node.submit(NAME)
    assert (Path(node.place.jobs) / NAME).is_dir()


@pytest.mark.parametrize(
    ("row", "said"),
    [("17|node1|{jobs}", "id"), ("17|None assigned|{jobs}", "refused"), ("17|node1|/other/jobs", "refused")],
)
def test_a_refusal_of_a_job_that_accounting_saw_begin_is_none(node: Node, row: str, said: str) -> None:
    node.program("sbatch", REFUSED)
    node.program("sacct", f"echo '{row.format(jobs=node.place.jobs)}'")
    assert [word for word, _ in node.submit(NAME)] == ["site", said]


def test_a_login_node_without_sbatch_refuses_at_once(node: Node) -> None:
    (node.bin / "sbatch").unlink()
    assert words_of("refused", node.submit(NAME)) == [NAME]


def test_a_job_that_somebody_staged_or_tried_a_moment_ago_is_left_to_him(node: Node) -> None:
    staged = node.job(NAME, age=5)
    assert words_of("doubt", node.submit(NAME)) == [NAME]
    node.program("squeue", f"(sleep 0.5; printf 16 >{staged}/{layout.ID}) >/dev/null 2>&1 &")
    assert ("id", [NAME, "16"]) in node.submit(NAME)
    tried = node.job(OTHER)
    (tried / layout.TRY).mkdir()
    assert words_of("doubt", node.submit(OTHER)) == [OTHER]
    os.utime(tried / layout.TRY, (1, 1))
    assert ("id", [OTHER, "17"]) in node.submit(OTHER)


def test_nodes_that_failed_earlier_attempts_are_avoided(node: Node) -> None:
    key = NAME.rpartition("-")[0]
    for attempt, nodes in {1: "n2\nn1\n", 2: "", 10: "n3\nn1\n"}.items():
        (node.job(f"{key}-{attempt}") / layout.BAD_NODES).write_text(nodes)
    node.submit(f"{key}-11")
    assert "--exclude=n1,n2,n3" in node.calls("sbatch")[-1].split()


def test_the_id_that_was_noted_first_stays(node: Node) -> None:
    folder = node.job(NAME)
    node.program("sbatch", f"printf 16 >{folder}/{layout.ID}; echo 17")  # somebody else was quicker
    assert ("id", [NAME, "16"]) in node.submit(NAME)
    assert (folder / layout.ID).read_text() == "16"


def test_an_empty_note_is_no_id(node: Node) -> None:
    folder = node.job(NAME, id="")
    assert ("id", [NAME, "17"]) in node.submit(NAME)
    assert (folder / layout.ID).read_text() == "17"


def test_what_was_there_before_is_told(node: Node) -> None:
    node.job(NAME, id="12")
    assert node.submit(NAME)[1:] == [("was", [NAME, '{"digest": "old"}']), ("id", [NAME, "12"])]
    assert node.calls("sbatch") == []


def test_nodes_that_failed_are_left_out_unless_too_few_remain(node: Node) -> None:
    second = f"tao-{KEY}-2"
    node.job(NAME)
    (Path(node.place.jobs) / NAME / layout.BAD_NODES).write_text("node2\nnode1\n")
    words = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    node.program("sbatch", f'case "$*" in *--exclude*) echo {json.dumps(words)} >&2; exit 1 ;; esac; echo 17')
    assert ("id", [second, "17"]) in node.submit(second)
    first, last = node.calls("sbatch")
    assert "--exclude=node1,node2" in first
    assert "--exclude" not in last


# -- secrets -----------------------------------------------------------------------------------------------------------


def with_secrets(node: Node, name: str, **files: str) -> Path:
    return node.job(name, **{"secrets_json": '{"TOKEN": "t"}', **files}) / layout.SECRETS


@pytest.mark.parametrize(
    ("queue", "accounting", "is_over"),
    [
        ("CANCELLED", "", True),
        ("FAILED", "", True),
        ("RUNNING", "CANCELLED by 1000", False),
        ("COMPLETING", "", False),
        ("PREEMPTED", "", False),  # SLURM may start it again
        ("", "CANCELLED by 1000", True),
        ("", "PREEMPTED", False),
        ("", "RUNNING", False),
        ("", "", False),
    ],
)
def test_secrets_are_swept_only_of_jobs_that_are_over_for_good(
    node: Node, queue: str, accounting: str, is_over: bool
) -> None:
    kept = with_secrets(node, NAME, id="17")
    node.program("squeue", f"echo {NAME} {queue}" if queue else "")
    node.program("sacct", f"echo '17|{NAME}|{accounting}'" if accounting else "")
    node.ask(find_question(node.place, None))
    assert kept.exists() is not is_over


def test_a_silent_queue_sweeps_nothing_but_what_was_written_down(node: Node) -> None:
    unknown, over = with_secrets(node, NAME, id="17"), with_secrets(node, OTHER, id="18", end_json="{}")
    node.program("squeue", "exit 1")
    node.program("sacct", f"printf '17|{NAME}|CANCELLED\\n18|{OTHER}|CANCELLED\\n'")
    node.ask(find_question(node.place, None))
    assert (unknown.exists(), over.exists()) == (True, False)


def test_a_launch_sweeps_only_when_nobody_has_lately(node: Node) -> None:
    node.program("squeue", f"case $* in *%T*) echo {NAME} CANCELLED ;; esac")
    with_secrets(node, NAME, id="16")
    node.submit(OTHER)
    assert not (Path(node.place.jobs) / NAME / layout.SECRETS).exists()
    (Path(node.place.jobs) / NAME / layout.SECRETS).write_text('{"TOKEN": "t"}')
    node.submit(f"tao-{KEY}-2")
    assert (Path(node.place.jobs) / NAME / layout.SECRETS).exists()
    os.utime(Path(node.place.base) / layout.SWEPT, (1, 1))
    node.submit(f"tao-{KEY}-3")
    assert not (Path(node.place.jobs) / NAME / layout.SECRETS).exists()


# -- look --------------------------------------------------------------------------------------------------------------


def looked(node: Node, *jobs: tuple[str, str], since: int = 0) -> Said:
    wanted = [Wanted(name, f"{node.folder}/results/{name}", id, since) for name, id in jobs]
    return node.ask(look_question(node.place, wanted))


def accounted(said: Said) -> list[str]:
    """The ids that accounting was asked about."""
    return [fields[1] for word, fields in said if word == "accounting"]


def row(name: str, id: str, state: str) -> str:
    given: dict[str, Any] = {"JobID": id, "Name": name, "State": state}
    return "".join(str(given.get(column, "")).ljust(width) for column, width in COLUMNS.items())


def test_of_many_forgotten_jobs_some_are_asked_for_and_named(node: Node) -> None:
    names = [f"tao-{number:016x}-1" for number in range(250)]
    for name in names:
        node.job(name)
    said = looked(node, *((name, str(number)) for number, name in enumerate(names, 1)))
    (line,) = accounted(said)
    asked = line.split(",")
    assert len(set(asked)) == MANY
    assert set(asked) <= {str(number) for number in range(1, 251)}
    (call,) = node.calls("sacct")
    assert f"-j {','.join(asked)} " in call
    # Many names are not put on a command line.
    (call,) = node.calls("squeue")
    assert "--name" not in call
    again = looked(node, *((name, str(number)) for number, name in enumerate(names, 1)))
    assert [line] != accounted(again)  # each time others, so that all have their turn


@pytest.mark.parametrize(
    ("marker", "asks"),
    [
        ('{"native_id": "17", "restarts": 0, "exit_code": 0, "ended_by": "none", "started": 1, "ended": 2}', False),
        ('{"native_id": "17", "restarts": 0, "exit_code": 143, "ended_by": "none", "started": 1, "ended": 2}', True),
        ('{"native_id": "17", "restarts": 0, "exit_code": 0, "ended_by": "preempt", "started": 1, "ended": 2}', True),
    ],
)
def test_accounting_is_asked_about_every_end_that_is_not_clean(node: Node, marker: str, asks: bool) -> None:
    node.job(NAME, exit_json=marker)
    said = looked(node, (NAME, "17"))
    assert (node.calls("sacct") != []) is asks
    assert accounted(said) == (["17"] if asks else [])


def test_a_job_that_waits_costs_no_look_at_its_results(node: Node) -> None:
    node.job(NAME)
    status = node.folder / "results" / NAME / "train" / "status.json"
    status.parent.mkdir(parents=True)
    status.write_text('{"epoch": 1}\n')
    node.program("squeue", f"echo '{row(NAME, '17', 'PENDING')}'")
    assert words_of("status", looked(node, (NAME, "17"))) == []
    node.program("squeue", f"echo '{row(NAME, '17', 'RUNNING')}'")
    assert ("status", [NAME, '{"epoch": 1}']) in looked(node, (NAME, "17"))


def test_only_jobs_that_were_submitted_from_here_are_ours(node: Node) -> None:
    node.job(NAME)
    rows = "\n".join((row(NAME, "17", "PENDING"), row(NAME, "18", "PENDING"), row(NAME, "19", "PENDING")))
    mine = f"{node.place.jobs}/{NAME}/{layout.SCRIPT}"
    node.program(
        "squeue",
        f"case $* in *%A*) for id in 17 19; do echo $id {NAME} {mine}; done; echo 18 {NAME} /other ;; "
        f"*) echo '{rows}' ;; esac",
    )
    said = looked(node, (NAME, "17"))
    assert words_of("ours", said) == ["17", "19"]


# -- other sites -------------------------------------------------------------------------------------------------------

FAR = "SLURM cluster far, user me"


def test_a_job_carries_the_site_that_it_was_submitted_at(node: Node) -> None:
    said = node.submit(NAME)
    (own,) = words_of("site", said)
    assert own.startswith("SLURM cluster polar, user ")
    assert (Path(node.place.jobs) / NAME / layout.SITE_FILE).read_text() == f"{own}\n"


@pytest.mark.parametrize("files", [{"id": "17"}, {}])
def test_the_name_of_a_job_elsewhere_is_neither_adopted_nor_submitted(node: Node, files: dict[str, str]) -> None:
    node.job(NAME, site=FAR, **files)
    said = node.submit(NAME)
    assert ("elsewhere", [NAME, FAR]) in said
    assert (words_of("id", said), node.calls("sbatch")) == ([], [])
    assert words_of("job", node.ask(find_question(node.place, [KEY]))) == [NAME]


def test_where_slurm_does_not_tell_which_cluster_it_is_nothing_is_done(node: Node) -> None:
    node.program("scontrol", "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1")
    kept = with_secrets(node, OTHER, id="18", end_json="{}")
    assert node.submit(NAME) == []
    assert node.calls("sbatch") == []
    assert not (Path(node.place.jobs) / NAME).exists()
    assert kept.exists()
    with pytest.raises(Unreachable, match="which cluster"):
        list(read_jobs(Answer(()), "slurm", node.place, "login"))


def test_a_known_site_is_not_asked_for_again(node: Node) -> None:
    assert words_of("site", node.ask(find_question(node.place, [KEY], FAR))) == [FAR]
    assert node.calls("scontrol") == []


def test_the_secrets_of_a_job_elsewhere_are_left_alone(node: Node) -> None:
    mine, theirs = with_secrets(node, NAME, id="17"), with_secrets(node, OTHER, id="18", site=FAR)
    node.program("sacct", f"printf '17|{NAME}|COMPLETED\\n18|{OTHER}|COMPLETED\\n'")
    node.ask(find_question(node.place, None))
    assert (mine.exists(), theirs.exists()) == (False, True)


@pytest.mark.parametrize("by", ["squeue", "sacct", ""])
def test_a_job_from_before_sites_is_ours_only_where_slurm_lists_it(node: Node, by: str) -> None:
    node.job(NAME, id="17")
    row = f"17 {NAME} $(realpath {node.place.jobs})/{NAME}/{layout.SCRIPT}"
    if by:
        node.program(by, f"echo {row}" if by == "squeue" else f"echo '17|{NAME}'")
    (found,) = read_jobs(read_answer(node.run(find_question(node.place, [KEY]))), "slurm", node.place, "login")
    assert (found.site == UNNAMED) is (by == "")


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_base_folder_is_new_only_where_it_could_be_made(node: Node) -> None:
    fresh = Layout(str(node.folder / "not" / "yet"))
    assert [word for word, _ in node.ask(find_question(fresh, [KEY]))] == ["site"]


def test_only_the_folders_of_the_keys_that_are_asked_for_are_looked_into(node: Node) -> None:
    other = "tao-fedcba9876543210-1"
    for name in (NAME, other, f"tao-{KEY}-12"):
        node.job(name, id="17")
    said = node.ask(find_question(node.place, [KEY]))
    assert sorted(words_of("job", said)) == [NAME, f"tao-{KEY}-12"]
    assert ("job", [other, "17"]) in node.ask(find_question(node.place, None))


def test_many_jobs_are_cancelled_without_their_names_on_a_command_line(node: Node) -> None:
    names = [f"tao-{number:016x}-1" for number in range(250)]
    for number, name in enumerate(names, 1):
        node.job(name, id=str(number))
    node.program("scancel", "")
    node.ask(question("cancel", jobs=node.place.jobs, names=names))
    (asked,) = node.calls("squeue")
    assert "--name" not in asked
    assert sorted(" ".join(node.calls("scancel")).split(), key=int) == [str(number) for number in range(1, 251)]
    assert all((Path(node.place.jobs) / name / layout.STOP).read_text() == "cancel" for name in names)


def test_a_login_node_without_slurms_commands_is_told(node: Node) -> None:
    for name in ("bash", "grep", "dirname", "stat", "paste", "awk"):
        (node.bin / name).symlink_to(str(shutil.which(name)))
    for name in ("srun", "scancel", "scontrol", "sinfo"):
        node.program(name, "")
    (node.bin / "sacct").unlink()
    platform = slurm_at(results_root=node.place.base)
    said = node.ask(probes._question(platform, None), PATH=str(node.bin))
    assert words_of("missing", said) == ["sacct"]


def test_what_a_person_has_set_for_slurms_commands_is_taken_away_but_not_where_the_cluster_is(node: Node) -> None:
    mine = {"SBATCH_PARTITION": "a", "SQUEUE_PARTITION": "b", "SACCT_FORMAT": "c", "SCANCEL_NAME": "d"}
    mine |= {"SLURM_TIME_FORMAT": "e", "SINFO_PARTITION": "f", "SLURM_CONF": "/etc/it", "SLURM_CLUSTERS": "g"}
    left = node.run(f"{program('common')}\nenv", **mine).splitlines()
    assert {line.partition("=")[0] for line in left} & mine.keys() == {"SLURM_CONF", "SLURM_CLUSTERS"}


# -- values and answers ------------------------------------------------------------------------------------------------

ODD = ["", "two words", "it's", '"$(echo no)`no`"', "a\nb\n", "\n", "-n", "é漢🙂 \\", "*"]


def test_values_reach_a_script_and_come_back_as_they_are(node: Node) -> None:
    said = node.run(f'{{ {source("common")}\n{assignments({"odd": ODD})}\nsay odd "${{odd[@]}}"; }} 3>&1 >/dev/null')
    assert read_answer(said).records == [("odd", ODD)]


def test_what_programs_print_by_themselves_is_no_part_of_an_answer(node: Node) -> None:
    node.job(NAME, id="17")
    node.program("scancel", "echo 2; printf 'id\\0%s\\0'; echo words >&2")
    assert node.ask(question("cancel", jobs=node.place.jobs, names=[NAME])) == []
    assert node.calls("scancel") == ["17"]


@pytest.mark.parametrize("text", ["2\0id\0", "words\0", "words", "1\0a\0002\0b\0", "0\0", "1\0a\0\n"])
def test_an_answer_that_is_not_whole_is_none(text: str) -> None:
    with pytest.raises(Unreachable, match="not whole"):
        read_answer(text)


def test_an_answer_is_read_by_its_words() -> None:
    answer = read_answer("3\0log\0main.out\0aGk=\0001\0yes\0003\0log\0main.err\0\0")
    assert "yes" in answer
    assert "no" not in answer
    assert answer.all("log") == [["main.out", "aGk="], ["main.err", ""]]
    assert (answer.text("log"), answer.text("no"), answer.data("log")) == ("", "", b"")
    assert Answer([]).records == read_answer("").records == []


def test_a_script_gets_exactly_what_it_declares() -> None:
    with pytest.raises(TypeError, match="names"):
        question("cancel", jobs="/x")
    with pytest.raises(TypeError, match="more"):
        question("cancel", jobs="/x", names=[], more="y")
