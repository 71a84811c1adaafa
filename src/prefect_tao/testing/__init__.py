"""For everyone who writes a driver: the contract suite, which every platform passes.

It needs pytest and pytest-asyncio: `pip install 'prefect-tao[testing]'`. No other part of the product imports it.
"""

from __future__ import annotations

import pytest

# Lets pytest explain the failed assertions of what is inherited from here.
pytest.register_assert_rewrite("prefect_tao.testing.contract")
