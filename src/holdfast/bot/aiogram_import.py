"""Imports aiogram in a third of its time. aiogram builds the validators of every type of the Bot API as it is imported,
which takes seconds. Holdfast uses few of them, so pydantic builds each when it is first used."""

import sys
from typing import Any

from pydantic import BaseModel


def import_aiogram() -> None:
    """Call this before anything imports aiogram. Later, it changes nothing."""
    if "aiogram.types" in sys.modules:
        return
    names: dict[str, Any] = {}
    original: Any = BaseModel.__dict__["model_rebuild"]

    def remember_names(model: type[BaseModel], /, **options: Any) -> bool | None:
        """What aiogram calls for each of its types, with the names of all of them."""
        if "_types_namespace" not in options:
            return _rebuild(model, options)
        names.update(options["_types_namespace"])
        return None

    def build(model: type[BaseModel], /, **options: Any) -> bool | None:
        """What pydantic calls when a type is first used."""
        return _rebuild(model, {"_types_namespace": names, **options})

    def _rebuild(model: type[BaseModel], options: dict[str, Any]) -> bool | None:
        built: bool | None = original.__func__(model, **options)
        return built

    BaseModel.model_rebuild = classmethod(remember_names)  # type: ignore[method-assign, assignment]
    try:
        from aiogram.methods import Response, TelegramMethod
        from aiogram.types import TelegramObject
    finally:
        BaseModel.model_rebuild = original  # type: ignore[method-assign]
    for base in (Response, TelegramMethod, TelegramObject):
        base.model_rebuild = classmethod(build)  # type: ignore[method-assign, assignment]
