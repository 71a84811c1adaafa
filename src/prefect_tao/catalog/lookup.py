"""Finds models and platforms by what a person calls them, and the nearest names for what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from prefect_tao.catalog.nouns import Catalog, ModelEntry, PlatformEntry


def find_model(catalog: Catalog, text: str) -> list[str]:
    """The models that `text` names exactly: by name, else by alias, arch or Hugging Face id. Several are ambiguous."""
    wanted = _fold(text)
    by_name = [name for name in catalog.models if _fold(name) == wanted]
    return by_name or [name for name, model in catalog.models.items() if wanted in _words(_model_words(model))]


def nearest_models(catalog: Catalog, text: str) -> list[str]:
    """At most five models whose names come close to `text`, the closest first."""
    return _nearest(text, {name: [name, *_model_words(model)] for name, model in catalog.models.items()})


def find_platform(catalog: Catalog, text: str) -> str | None:
    """The platform that `text` names, by name or alias."""
    wanted = _fold(text)
    for name, platform in catalog.platforms.items():
        if wanted in _words([name, *platform.aliases]):
            return name
    return None


def nearest_platforms(catalog: Catalog, text: str) -> list[str]:
    """At most five platforms whose names come close to `text`, the closest first."""
    return _nearest(text, {name: _platform_words(name, platform) for name, platform in catalog.platforms.items()})


def _model_words(model: ModelEntry) -> list[str]:
    return [*model.aliases, model.arch, *model.huggingface_ids]


def _platform_words(name: str, platform: PlatformEntry) -> list[str]:
    return [name, *platform.aliases, platform.title]


def _nearest(text: str, names: Mapping[str, Iterable[str]]) -> list[str]:
    owners: dict[str, list[str]] = {}
    for name, words in names.items():
        for word in _words(words):
            owners.setdefault(word, []).append(name)
    wanted = _fold(text)
    if not wanted:
        return []
    close = get_close_matches(wanted, owners, n=10, cutoff=0.6)
    # A part of a name is close as well, however long the rest is.
    close += sorted(word for word in owners if len(wanted) >= 3 and wanted in word)
    return list(dict.fromkeys(owner for word in close for owner in owners[word]))[:5]


def _words(words: Iterable[str]) -> set[str]:
    return {_fold(word) for word in words}


def _fold(text: str) -> str:
    return text.strip().casefold()
