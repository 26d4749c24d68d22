"""Preflight of tokenizer, template and lengths; no forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..envs import EnvFailure, Observation, Task, TaskSuite
from ._preflight_report import OK, REFUSED, SKIPPED, WARNING, Check, attempt
from .chat import Chat, shortest_chat
from .contexts import informed
from .control_tokens import CUT
from .limits import embedding_rows, model_positions
from .sampling import SamplingConfig
from .stops import end_of_turn, named_stop_ids, stop_token_ids
from .suite_calls import asked, turn_messages
from .types import Message

_USER = "qvz user text 90125"
_HINT = "qvz hint text 90126"
_HOOK_FIX = "correct the suite's with_context()"
ID_CHECKS = ("pad id", "end-of-sequence id", "vocabulary", "prompt ids")
"""Checks whose refusal means that a forward pass would read beyond the embedding."""
TEMPLATE_FIX = "set a chat template that takes the suite's roles and renders contents that are strings"
UNKNOWN_SHARE = 0.01
"""Share of unknown tokens in a prompt above which there is a warning."""


def check_lengths(model: Any, sampling: SamplingConfig, teacher_length: int | None = None) -> Check:
    """Longest prompt and response against the positions; the teacher's response counts where it is longer."""
    positions = model_positions(model)
    completion = max(sampling.max_completion_length, teacher_length or 0)
    needed = sampling.max_prompt_length + completion
    got = f"{sampling.max_prompt_length} + {completion} = {needed} tokens"
    if positions is None:
        return Check("lengths", OK, got, "no limit known")
    expected = f"at most {positions.limit} ({positions.source})"
    if needed <= positions.limit:
        return Check("lengths", OK, got, expected)
    room = positions.limit - completion
    fix = f"set max_prompt_length={room}" if room > 0 else "lower max_completion_length"
    why = "a longer row raises an IndexError" if positions.hard else "the model was not made for longer rows"
    return Check("lengths", REFUSED, got, expected, f"{fix} or load a model with more positions: {why}")


def check_ids(model: Any, tokenizer: Any) -> list[Check]:
    """Pad, stop and added ids against the rows of the embedding."""
    rows = embedding_rows(model)
    resize = "call model.resize_token_embeddings(len(tokenizer)), or load the model's own tokenizer"
    checks = []
    for name, value in (("pad id", tokenizer.pad_token_id), ("end-of-sequence id", tokenizer.eos_token_id)):
        if value is not None:
            status = OK if 0 <= value < rows else REFUSED
            checks.append(
                Check(name, status, str(value), f"below the embedding's {rows} rows", resize * (status != OK))
            )
    outside = [i for i in named_stop_ids(model, tokenizer) if not 0 <= i < rows and i != tokenizer.eos_token_id]
    if outside:
        fix = "correct model.generation_config.eos_token_id"
        checks.append(Check("generation config's stop ids", WARNING, str(outside), f"below {rows}", fix))
    known = {*tokenizer.all_special_ids, *getattr(tokenizer, "added_tokens_decoder", {}), *outside}
    ordinary = [tokenizer.decode([i]) for i in named_stop_ids(model, tokenizer) if i not in known]
    if ordinary:
        fix = "correct model.generation_config.eos_token_id: a response ends at its first such token"
        checks.append(Check("stop ids in text", WARNING, f"ordinary tokens {ordinary}", "special tokens", fix))
    checks.append(_check_vocabulary(tokenizer, rows, resize))
    return checks


def _check_vocabulary(tokenizer: Any, rows: int, resize: str) -> Check:
    outside = {i: token for token, i in tokenizer.get_vocab().items() if i >= rows}
    expected = f"at most the embedding's {rows} rows"
    if not outside:
        return Check("vocabulary", OK, f"{len(tokenizer)} tokens", expected)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    plain = [i for i in sorted(outside) if not getattr(added.get(i), "special", False)]
    shown = plain or sorted(outside)
    got = f"{len(outside)} tokens outside, such as {outside[shown[0]]!r} = {shown[0]}"
    # Gemma's tokenizer knows an image mark that its text models do not; ordinary text never holds it
    return Check("vocabulary", REFUSED if plain else WARNING, got, expected, resize)


def check_end_of_turn(model: Any, tokenizer: Any) -> Check:
    """What the template ends an assistant's turn with against the named stop ids; `stop_token_ids` adds it to them."""
    name, closing = "end of turn", end_of_turn(tokenizer)
    if closing is None:
        fix = "see that the model ends its turns with one of the stop ids"
        return Check(name, WARNING, "the template renders no assistant's message", "a stop id", fix)
    shown = closing.text.strip()[:40]
    if not closing.ids:
        fix = "see that the model ends its turns with one of the stop ids, or with a stop string of the suite"
        return Check(name, WARNING, f"plain text {shown!r}", "a stop id", fix)
    token = tokenizer.decode([closing.ids[0]])
    new = not set(closing.ids) & set(named_stop_ids(model, tokenizer))
    return Check(name, OK, f"{token!r} = {closing.ids[0]}" + " (added to the stop ids)" * new, "a stop id")


def check_no_stop(tokenizer: Any, stop_ids: Sequence[int], stop_strings: Sequence[str]) -> Check:
    """Whether a response can end before its budget is spent."""
    if stop_ids or stop_strings:
        return Check("stop ids", OK, str(list(stop_ids)))
    fix = "set tokenizer.eos_token or model.generation_config.eos_token_id"
    return Check("stop ids", WARNING, "none: every response is as long as its budget", "at least one", fix)


def rendered_text(tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
    """The prompt as text: from the template, and from the ids, where contents may take another way."""
    chat = Chat(tokenizer, messages, kwargs)
    return f"{chat.text.replace(CUT, '')}\n{tokenizer.decode(list(chat.ids()), skip_special_tokens=False)}"


def missing_contents(tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> list[Message]:
    """The user's and system's messages whose text is not in the prompt, blanks aside."""
    shown = "".join(rendered_text(tokenizer, messages, kwargs).split())
    return [
        message
        for message in messages
        if message["role"] in ("user", "system") and "".join(_content(message).split()) not in shown
    ]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content)


def check_template(tokenizer: Any, kwargs: Mapping[str, Any]) -> Check:
    """Whether a user's text is in its prompt."""
    name = "user text in the prompt"

    def check() -> Check:
        return _template_check(name, tokenizer, shortest_chat(tokenizer, _USER, kwargs), kwargs)

    return attempt(name, check, TEMPLATE_FIX)


def _template_check(name: str, tokenizer: Any, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> Check:
    missing = missing_contents(tokenizer, messages, kwargs)
    if missing:
        got = f"missing: {missing[0]['role']} {_content(missing[0])[:60]!r}"
        return Check(name, REFUSED, got, "in the rendered prompt", TEMPLATE_FIX)
    return Check(name, OK, f"{len(messages)} messages", "in the rendered prompt")


def check_task(
    tokenizer: Any, model: Any, suite: TaskSuite, task: Task | None, kwargs: Mapping[str, Any]
) -> list[Check]:
    """The suite's first messages for one task, with a made-up observation, as the template renders them."""
    name, observation = "task text in the prompt", Observation(_USER, ("look",))
    if task is None:
        return [Check(name, SKIPPED, "the suite has no task")]
    messages = turn_messages(suite, task, [], observation)
    if isinstance(messages, EnvFailure):
        if " raised " in messages.message:  # a suite may read more out of an observation than a made-up one holds
            return [Check(name, SKIPPED, f"of a made-up observation, {messages.message}")]
        return [Check(name, REFUSED, messages.message, "a list of messages", "correct the suite's messages()")]
    if not any(_USER in _content(message) for message in messages):
        return [Check(name, SKIPPED, "messages() leaves a made-up observation out")]
    checks = [attempt(name, lambda: _template_check(name, tokenizer, messages, kwargs), TEMPLATE_FIX)]
    if checks[0].status == REFUSED:
        return checks
    ids, rows = Chat(tokenizer, messages, kwargs).ids(), embedding_rows(model)
    outside = sorted({i for i in ids if not 0 <= i < rows})
    if outside:
        fix = "call model.resize_token_embeddings(len(tokenizer))"
        checks.append(Check("prompt ids", REFUSED, f"{outside[:5]} in a prompt", f"below {rows}", fix))
    if hasattr(suite, "with_context"):
        name = "context in the prompt"
        checks.append(attempt(name, lambda: _context_check(name, tokenizer, suite, messages, kwargs), _HOOK_FIX))
    return checks


def _context_check(
    name: str, tokenizer: Any, suite: TaskSuite, messages: Sequence[Message], kwargs: Mapping[str, Any]
) -> Check:
    """Whether a text that the suite's hook is given reaches the prompt."""
    told = asked("with_context", lambda: informed(suite, messages, _HINT))
    if isinstance(told, EnvFailure):  # a hook may read more out of a text than a made-up one holds
        raised = " raised " in told.message
        return Check(name, SKIPPED if raised else REFUSED, told.message, "messages with the text", _HOOK_FIX)
    shown = "".join(_HINT.split()) in "".join(rendered_text(tokenizer, told, kwargs).split())
    got = "the text of a context" if shown else "a prompt without the text"
    return Check(name, OK if shown else REFUSED, got, "in the rendered prompt", _HOOK_FIX * (not shown))


def unknown_share(tokenizer: Any, prompts: Sequence[Sequence[int]]) -> float:
    """Share of unknown tokens in prompts."""
    unknown, total = tokenizer.unk_token_id, sum(len(prompt) for prompt in prompts)
    if unknown is None or not total or unknown == tokenizer.pad_token_id or unknown == tokenizer.eos_token_id:
        return 0.0
    return sum(list(prompt).count(unknown) for prompt in prompts) / total


def text_checks(
    model: Any,
    tokenizer: Any,
    suite: TaskSuite | None,
    task: Task | None,
    sampling: SamplingConfig,
    teacher_length: int | None,
    kwargs: Mapping[str, Any],
) -> tuple[list[Check], tuple[int, ...]]:
    """All checks without a forward pass, and the ids that end a response."""
    stop_ids = stop_token_ids(model, tokenizer)
    checks = [
        check_lengths(model, sampling, teacher_length),
        *check_ids(model, tokenizer),
        check_no_stop(tokenizer, stop_ids, suite.stop_strings if suite is not None else ()),
        check_end_of_turn(model, tokenizer),
        check_template(tokenizer, kwargs),
    ]
    if suite is not None:
        checks += check_task(tokenizer, model, suite, task, kwargs)
    return checks, stop_ids
