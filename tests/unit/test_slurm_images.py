"""Image references for Pyxis and Enroot: what is a registry, what is an organization, and where a copy is kept."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from prefect_tao.platforms.slurm import enroot

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("nvcr.io/nvidia/tao/tao-toolkit:5.5.0-pyt", "nvcr.io#nvidia/tao/tao-toolkit:5.5.0-pyt"),
        ("docker://nvcr.io/nvidia/tao/tao-toolkit:5.5.0-pyt", "nvcr.io#nvidia/tao/tao-toolkit:5.5.0-pyt"),
        ("nvcr.io#nvidia/tao:1", "nvcr.io#nvidia/tao:1"),
        ("docker://nvcr.io#nvidia/tao:1", "nvcr.io#nvidia/tao:1"),
        ("pytorch/pytorch:2.4", "pytorch/pytorch:2.4"),
        ("docker://pytorch/pytorch:2.4", "pytorch/pytorch:2.4"),
        ("ubuntu", "ubuntu"),
        ("ubuntu:24.04", "ubuntu:24.04"),
        ("localhost/mine:1", "localhost#mine:1"),
        ("registry:5000/team/mine:1", "registry:5000#team/mine:1"),
        (f"nvcr.io/nvidia/tao@{DIGEST}", f"nvcr.io#nvidia/tao@{DIGEST}"),
        (f"pytorch/pytorch@{DIGEST}", f"pytorch/pytorch@{DIGEST}"),
        ("/lustre/images/tao.sqsh", "/lustre/images/tao.sqsh"),
        ("./tao.sqsh", "./tao.sqsh"),
    ],
)
def test_every_form_of_a_reference_becomes_what_srun_takes(reference: str, expected: str) -> None:
    assert enroot.pyxis(reference) == expected


def test_an_import_names_its_scheme_once() -> None:
    for reference in ("nvcr.io/nvidia/tao:1", "docker://nvcr.io/nvidia/tao:1", "nvcr.io#nvidia/tao:1"):
        assert enroot.enroot(reference) == "docker://nvcr.io#nvidia/tao:1"


def test_two_images_never_share_a_file_nor_a_conversion() -> None:
    alike = [
        "nvcr.io/a/b:1",
        "nvcr.io/a_b:1",
        "nvcr.io/a/b_1",
        "nvcr.io/a-b:1",
        "nvcr.io/A/b:1",
        "a/b:1",
        "a_b:1",
        "a/b/1",
        f"a/b@{DIGEST}",
        f"a/b@{DIGEST[:-1]}0",
        # Alike in their last eighty characters.
        f"one.example/{'x' * 100}:1",
        f"two.example/{'x' * 100}:1",
    ]
    for one, other in combinations(alike, 2):
        assert enroot.cached_name(one) != enroot.cached_name(other), (one, other)
        assert enroot.conversion_name(one) != enroot.conversion_name(other), (one, other)


def test_the_forms_of_one_image_share_their_file() -> None:
    forms = ["nvcr.io/nvidia/tao:1", "docker://nvcr.io/nvidia/tao:1", "nvcr.io#nvidia/tao:1"]
    assert len({enroot.cached_name(form) for form in forms}) == 1
    assert len({enroot.conversion_name(form) for form in forms}) == 1


@pytest.mark.parametrize("reference", ["ubuntu", f"nvcr.io/{'deep/' * 60}x:1", "a/b:$(touch x)", f"a@{DIGEST}"])
def test_a_cached_file_has_a_plain_and_short_name(reference: str) -> None:
    name = enroot.cached_name(reference)
    assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.sqsh", name)
    assert len(name) < 120


@pytest.mark.parametrize(
    ("reference", "latest"),
    [
        ("ubuntu", True),
        ("ubuntu:latest", True),
        ("nvcr.io/nvidia/tao", True),
        ("registry:5000/team/mine", True),
        ("ubuntu:24.04", False),
        (f"ubuntu@{DIGEST}", False),
        ("/lustre/latest.sqsh", False),
    ],
)
def test_only_a_reference_without_a_fixed_tag_may_change(reference: str, latest: bool) -> None:
    assert enroot.is_latest(reference) is latest


@pytest.mark.parametrize(
    ("reference", "private"),
    [
        ("nvcr.io/nvidia/tao/tao-toolkit:1", False),
        ("nvcr.io#nvidia/tao:1", False),
        ("docker://nvcr.io/ea/net:1", True),
        ("nvcr.io/nvidia-private/net:1", True),
        ("pytorch/pytorch:2", False),
        ("/lustre/nvcr.io.sqsh", False),
    ],
)
def test_images_that_may_need_credentials_are_told_from_others(reference: str, private: bool) -> None:
    assert enroot.is_private(reference) is private
