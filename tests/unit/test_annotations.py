"""Required fields are found out from the first records of an annotation file, in every shape that such files have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.preflight.checks.annotation_fields import MAX_PROBLEMS, BrokenFile, check_annotation, sample_records

GOOD = {"id": 1, "video_fps": 30}
BAD = {"id": 2}


async def check(data: bytes, uri: str = "a.json", fields: tuple[str, ...] = ("video_fps",), **options: Any) -> Finding:
    async def read(_: str, limit: int) -> bytes:
        return data[:limit]

    return await check_annotation("train", uri, fields, read, **options)


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("key", ["annotations", "data", "samples", "items"])
async def test_records_are_found_in_a_list_under_any_of_its_usual_names(key: str) -> None:
    assert (await check(text({"info": {}, key: [GOOD]}))).level is Level.OK
    assert (await check(text({"info": {}, key: [GOOD, BAD]}))).level is Level.FAIL


@pytest.mark.parametrize(
    "data",
    [
        text([GOOD]),
        text(GOOD),
        json.dumps([GOOD, GOOD], indent=2).encode(),
        b"\xef\xbb\xbf" + text([GOOD]),
        text(GOOD) + b"\n" + text(GOOD) + b"\n",
        text(GOOD) + b"\r\n\r\n" + text(GOOD),
    ],
    ids=["list", "object", "indented", "byte order mark", "lines", "lines of Windows"],
)
async def test_every_shape_is_understood(data: bytes) -> None:
    assert (await check(data)).level is Level.OK


async def test_a_missing_field_names_its_record() -> None:
    found = await check(text([GOOD, BAD, {"id": 3, "video_fps": None}, "odd"]))
    assert found.level is Level.FAIL
    for said in ("record 2 lacks video_fps", "record 3 lacks video_fps", "record 4 is not an object"):
        assert said in found.message
    assert "video_fps" in found.remedy


async def test_a_missing_field_names_its_line_in_json_lines() -> None:
    found = await check(text(GOOD) + b"\n" + text(BAD), "a.jsonl")
    assert "line 2 lacks video_fps" in found.message


async def test_at_most_five_problems_are_told() -> None:
    found = await check(text([BAD] * 12))
    assert found.message.count("lacks") == MAX_PROBLEMS == 5
    assert "and 7 more" in found.message


async def test_only_the_first_records_are_looked_at() -> None:
    assert (await check(text([GOOD] * 20 + [BAD]))).level is Level.OK
    assert (await check(text([GOOD] * 3 + [BAD]), limit=3)).level is Level.OK
    assert (await check(text([GOOD] * 3 + [BAD]), limit=4)).level is Level.FAIL


async def test_a_broken_line_in_two_megabytes_is_named(tmp_path: Path) -> None:
    rows = [json.dumps({**GOOD, "text": "x" * 180}) for _ in range(10_000)]
    rows[7_654] = rows[7_654][:-1]
    lines, listed = tmp_path / "a.jsonl", tmp_path / "a.json"
    lines.write_text("\n".join(rows))
    listed.write_text("[\n" + ",\n".join(rows) + "\n]")
    assert lines.stat().st_size > 2_000_000
    for file, line in ((lines, "7655"), (listed, "7656 or 7657")):
        found = await check_annotation("train", str(file), ["video_fps"], process_at(tmp_path).read_path)
        assert found.level is Level.FAIL
        assert f"line {line}: " in found.message
        assert found.remedy


async def test_a_first_line_that_is_broken_is_the_one_named() -> None:
    assert "line 1: " in (await check(b'{"id": 1,\n{"id": 2}\n', "a.jsonl")).message


@pytest.mark.parametrize("data", [b"", b"  \n", b"[]", b'{"data": []}'])
async def test_a_file_without_records_fails(data: bytes) -> None:
    found = await check(data)
    assert found.level is Level.FAIL
    assert "no record" in found.message


async def test_what_is_not_text_fails_with_its_line() -> None:
    assert "line 2 is not UTF-8" in (await check(b"[\n\xff\xfe]")).message


async def test_nesting_without_end_is_no_traceback() -> None:
    assert (await check(b"[" * 1_000_000)).level is Level.FAIL


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"info": {"a": [1]}, "data": rows}])
@pytest.mark.parametrize("length", range(400, 440))
async def test_a_file_cut_off_anywhere_still_gives_its_first_records(wrap: Any, length: int) -> None:
    data = text(wrap([{**GOOD, "text": "a, ]} é"}] * 50))
    assert (await check(data, read_bytes=length)).level is Level.OK
    assert (await check(text(wrap([BAD] * 50)), read_bytes=length)).level is Level.FAIL


async def test_a_cut_off_file_of_lines_loses_only_its_last_line() -> None:
    data = (text(GOOD) + b"\n") * 50
    assert len(sample_records(data[:100], whole=False, lines=True)) == 100 // (len(text(GOOD)) + 1)


async def test_a_file_broken_before_the_cut_is_broken() -> None:
    with pytest.raises(BrokenFile, match="line 2"):
        sample_records(b'[{"id": 1},\n{"id": oops},\n' + text([GOOD] * 40), whole=False)


async def test_records_beyond_the_cut_are_unknown() -> None:
    found = await check(text({"images": [GOOD] * 100, "annotations": [GOOD]}), read_bytes=200)
    assert found.level is Level.UNKNOWN


async def test_reading_here_tells_why_it_cannot(tmp_path: Path) -> None:
    from prefect_tao.jobs.errors import InvalidInput

    read = process_at(tmp_path).read_path
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidInput):
            await read(str(place), 10)
    (tmp_path / "a").write_bytes(b"0123456789")
    assert await read(f"file://{tmp_path}/a", 4) == b"0123"
