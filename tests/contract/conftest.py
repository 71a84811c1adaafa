"""Lets pytest explain failed assertions of the shared suite too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("suite")
