"""What follows from the declared parameters: their order, a flow's signature and docstring, and a checked model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from prefect_tao.launch.parameters.declared import DIFFERENT
from prefect_tao.launch.parameters.parameter import Group, Parameter
from prefect_tao.launch.parameters.storable import check_storable

if TYPE_CHECKING:
    from pydantic import BaseModel

Called = TypeVar("Called", bound=Callable[..., Any])


@cache
def parameters(kind: type) -> Mapping[str, Parameter]:
    """The parameters of a class of `declared` by name, group by group."""
    found = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        (about,) = (one for one in hint.__metadata__ if isinstance(one, Parameter))
        found.append(replace(about, name=name, type=hint, **DIFFERENT.get(kind, {}).get(name, {})))
    groups = get_args(Group)
    return {one.name: one for one in sorted(found, key=lambda one: groups.index(one.group))}


def completed(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, and the defaults of all else."""
    return {name: given.get(name, one.default) for name, one in parameters(kind).items()}


def takes(kind: type) -> Callable[[Called], Called]:
    """Gives `async def flow(**given)` the signature of the parameters, and their help as the Args of its docstring."""

    def described(flow: Called) -> Called:
        known = parameters(kind).values()
        flow.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    one.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=one.default, annotation=one.type
                )
                for one in known
            ]
        )
        lines = [inspect.cleandoc(flow.__doc__ or ""), "", "Args:", *(f"    {one.name}: {one.help}" for one in known)]
        flow.__doc__ = "\n".join(lines)
        return flow

    return described


@cache
def model_of(kind: type) -> type[BaseModel]:
    """The parameters as a model that refuses all others."""
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {name: (one.type, one.default) for name, one in parameters(kind).items()}
    return create_model(kind.__name__, __config__=ConfigDict(extra="forbid", hide_input_in_errors=True), **fields)


def checked(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, each value as its type has it. Raises InvalidInput with all that does not fit."""
    check_storable(given)
    return _validated(model_of(kind), given).model_dump(exclude_unset=True)


def check_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Look at what a function is called with before anything begins. Raises InvalidInput with all that does not fit."""
    from pydantic import ConfigDict, create_model

    try:
        bound = inspect.signature(function, eval_str=True).bind(*args, **kwargs)
    except TypeError:
        return  # a missing or unknown name, which the call itself tells
    known = bound.signature.parameters.values()
    fields: dict[str, Any] = {one.name: (one.annotation, one.default) for one in known if one.name in bound.arguments}
    config = ConfigDict(arbitrary_types_allowed=True)
    _validated(create_model(function.__name__, __config__=config, **fields), bound.arguments)


def _validated(model: type[BaseModel], given: Mapping[str, Any]) -> BaseModel:
    from pydantic import ValidationError

    from prefect_tao.jobs.request import invalid_fields

    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise invalid_fields(error) from None
