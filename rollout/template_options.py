"""Variables of the chat template: the suite's own, its tools, and the run's."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from .templates import check_template_kwargs
from .tools import checked_tools

logger = logging.getLogger(__name__)


def template_options(suite: Any, kwargs: Mapping[str, Any], where: str, template: str | None = None) -> dict[str, Any]:
    """Variables of the chat template for every prompt: the suite's ``chat_template_kwargs`` and ``tools``, then the
    run's, which win.

    Args:
        suite: the task suite, or None.
        kwargs: the run's.
        where: who takes the run's, for messages.
        template: the template's source; options of the suite that it never mentions are left out with a warning.

    Raises:
        TypeError: options that are no mapping of JSON values, or tools that are no JSON schemas.
        ValueError: a name that the library sets itself, or tools that the template cannot show.
    """
    name = type(suite).__name__
    own = check_template_kwargs(getattr(suite, "chat_template_kwargs", None) or {}, name)
    ignored = [key for key in own if template is not None and key not in kwargs and not mentions(template, key)]
    if ignored:
        logger.warning("the chat template does not mention %s of %s; left out", ignored, name)
    tools = checked_tools(getattr(suite, "tools", None) or (), name)
    if tools and template is not None and not mentions(template, "tools"):
        raise ValueError(
            f"{where}: {name}.tools must be shown by the chat template, which never mentions tools; take a model whose "
            "template does, or describe them in messages()"
        )
    own = {key: value for key, value in own.items() if key not in ignored}
    return {**own, **({"tools": tools} if tools else {}), **check_template_kwargs(kwargs, where)}


def mentions(template: str, name: str) -> bool:
    """Whether a template's source holds the variable's name."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None
