"""What the image has installed besides Python itself."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def package(name: str) -> Any:
    """An installed package, or None. We start without any, which is quicker; the first one wanted lets them in."""
    from importlib import import_module

    if sys.flags.no_site and "site" not in sys.modules:
        import site

        site.main()
    try:
        return import_module(name)
    except ImportError:
        return None
