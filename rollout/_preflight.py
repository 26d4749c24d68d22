"""Before training: does what is sampled, scored and trained agree with the model, its tokenizer and its template?"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from ..envs import Task, TaskSuite
from ._preflight_model import (
    Rows,
    make_prompts,
    make_rows,
    model_checks,
    tokens_needed,
    undisturbed,
    unsampled_rows,
)
from ._preflight_report import OK, REFUSED, SKIPPED, WARNING, Check, PreflightReport, attempt
from ._preflight_text import ID_CHECKS, TEMPLATE_FIX, text_checks
from .determinism import make_deterministic, settings_kept
from .limits import model_positions
from .prompts import check_tokenizer
from .sampling import SamplingConfig, precision_of
from .scoring import Agree, PolicyScorer, score_responses
from .template_options import template_options

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "HALF_PRECISION",
    "NOTHING_TRAINABLE",
    "Check",
    "PreflightReport",
    "RunParts",
    "preflight",
    "preflight_run",
]

logger = logging.getLogger(__name__)

_FAMILY = "see docs/models.md for classes that work"


@dataclass(frozen=True)
class RunParts:
    """What a run samples, scores and trains with, for `preflight_run`.

    Args:
        scorer: the bare `PolicyScorer`.
        tokenizer, suite, sampling: the run's; without a suite its texts are not looked at.
        task: whose first messages are rendered.
        teacher_length: response budget of a generating teacher, tokens; None for the student's.
        scoring: what scores in the run: the scorer, or DeepSpeed's engine around it.
        reference: the reference as a scorer, or None.
        own_reference: whether it has to equal the policy at the start.
        generation: the context in which the run generates.
        agree: see `score_responses`; given where forward passes are collective calls.
        masters: whether the optimiser keeps float32 copies of half-precision weights (DeepSpeed).
        chat_template_kwargs: further variables of the chat template.
    """

    scorer: PolicyScorer
    tokenizer: Any
    suite: TaskSuite | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    task: Task | None = None
    teacher_length: int | None = None
    scoring: Any = None
    reference: Any = None
    own_reference: bool = True
    generation: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    agree: Agree | None = None
    masters: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def preflight(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    suite: TaskSuite | None = None,
    *,
    sampling: SamplingConfig | None = None,
    reference: PreTrainedModel | None = None,
    mixed_precision: str = "no",
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> PreflightReport:
    """Compare sampling, scoring and training with the model itself on a few short rows, and look at ids and lengths.

    Nothing is changed: neither weights nor modes nor random states. The model is looked at as `GRPOTrainer` would train
    it, so without dropout.

    Args:
        model: a causal language model, or a peft model around one.
        tokenizer: its tokenizer, with a chat template and a padding token.
        suite: the task suite, whose first task's messages are rendered; None leaves that out.
        sampling: the run's sampling settings: temperature and lengths; without them the defaults' lengths only warn.
        reference: the reference model of the KL term, or None.
        mixed_precision: ``"no"`` or ``"bf16"``, the run's autocast.
        chat_template_kwargs: further variables of the chat template, such as ``{"enable_thinking": False}``.

    Returns:
        A report; ``str(report)`` is a table, ``report.raise_if_refused()`` raises what it refuses.

    Raises:
        ValueError: the tokenizer has no chat template or padding token, or `mixed_precision` is another word.
    """
    if mixed_precision not in ("no", "bf16"):
        raise ValueError(f'preflight: mixed_precision must be "no" or "bf16", got {mixed_precision!r}; use one of them')
    kind = str(model.get_input_embeddings().weight.device.type)

    def autocast() -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(kind, torch.bfloat16, enabled=mixed_precision == "bf16")

    with undisturbed(model), settings_kept(model):  # a scorer sets the mode of every module
        make_deterministic(model)
        parts = RunParts(
            PolicyScorer(model),
            tokenizer,
            suite,
            sampling or SamplingConfig(),
            next(iter(suite.tasks("train")), None) if suite is not None else None,
            reference=None if reference is None else PolicyScorer(reference),
            own_reference=False,
            generation=autocast,
            masters=mixed_precision == "bf16",  # the trainer makes trainable weights float32 then
            chat_template_kwargs=chat_template_kwargs or {},
        )
        report = preflight_run(parts)
    return report if sampling is not None else replace(report, checks=tuple(map(_without_settings, report.checks)))


def _without_settings(check: Check) -> Check:
    """A check of lengths that nobody asked for is no refusal."""
    refused = check.name == "lengths" and check.status == REFUSED
    return replace(check, status=WARNING, got=f"by default {check.got}") if refused else check


def preflight_run(parts: RunParts) -> PreflightReport:
    """`preflight` with the parts that a trainer has made; every process calls it with the same ones.

    Raises:
        ValueError: the tokenizer has no chat template or padding token.
    """
    check_tokenizer(parts.tokenizer)
    source = str(parts.tokenizer.chat_template)
    kwargs = template_options(parts.suite, parts.chat_template_kwargs, "preflight", source)
    parts = replace(parts, chat_template_kwargs=kwargs)
    model, temperature = parts.scorer.model, parts.sampling.temperature
    checks, stop_ids = text_checks(
        model,
        parts.tokenizer,
        parts.suite,
        parts.task,
        parts.sampling,
        parts.teacher_length,
        parts.chat_template_kwargs,
    )
    checks.append(_trainable(model, parts.masters))
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    with undisturbed(model):
        with parts.generation():
            precision = precision_of(model)
            rows, failure = _rows(parts, any(c.status == REFUSED and c.name in ID_CHECKS for c in checks))
            if rows is not None:
                checks += model_checks(parts.scorer, rows, parts.tokenizer.pad_token_id, temperature, precision)
        if failure is not None:
            checks.append(failure)
        if rows is not None and parts.reference is not None:
            checks.append(attempt("reference", lambda: _reference(parts, rows), _FAMILY))
    return PreflightReport(type(base).__name__, precision, tuple(checks), stop_ids)


def _rows(parts: RunParts, bad_ids: bool) -> tuple[Rows | None, Check | None]:
    """Rows to run, and the check that says why there are none, or none that were sampled."""
    model = parts.scorer.model
    if bad_ids:
        return None, Check("forward passes", SKIPPED, "ids outside the embedding")
    prompts: list[tuple[int, ...]] = []
    made: list[Rows] = []

    def render() -> Check:
        prompts.extend(make_prompts(parts.tokenizer, parts.chat_template_kwargs))
        return Check("prompts", OK, "")

    def sample() -> Check:
        made.append(make_rows(model, parts.tokenizer, prompts, parts.sampling, parts.agree is not None))
        return Check("sampling", OK, "")

    rendered = attempt("prompts", render, TEMPLATE_FIX)
    if not prompts:
        return None, rendered
    positions, needed = model_positions(model), tokens_needed(prompts)
    if positions is not None and needed > positions.limit:
        return None, Check("forward passes", SKIPPED, f"rows of {needed} tokens", f"at most {positions.limit}")
    sampled = attempt("sampling", sample, _FAMILY)
    return (made[0], None) if made else (unsampled_rows(prompts), sampled)


def _reference(parts: RunParts, rows: Rows) -> Check:
    """KL (k3) of the policy to its reference on the rows: exactly 0 where the reference is the policy's own start."""
    scores = [
        score_responses(
            scorer,
            rows.prompts,
            rows.responses,
            pad_token_id=parts.tokenizer.pad_token_id,
            temperature=parts.sampling.temperature,
            agree=parts.agree,
        )
        for scorer in (parts.scoring or parts.scorer, parts.reference)
    ]
    gap = (scores[1].logprobs - scores[0].logprobs)[scores[0].mask].double()
    kl = float((gap.exp() - 1 - gap).mean())
    got = f"KL {kl:.3g} nats per token"
    if not parts.own_reference:
        status = OK if kl == 0 else WARNING
        return Check("reference", status, got, "0 for a reference that equals the policy")
    return Check("reference", OK if kl == 0 else REFUSED, got, "exactly 0", _REFERENCE if kl else "")


def _trainable(model: Any, masters: bool) -> Check:
    """Something is trained, and in steps as small as float32's."""
    name = "trainable weights"
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.requires_grad})
    if not kinds:
        return Check(name, REFUSED, "none", "at least one", NOTHING_TRAINABLE)
    coarse = [kind for kind in kinds if kind in ("float16", "bfloat16")]
    if coarse and not masters:
        return Check(name, REFUSED, ", ".join(kinds), "float32", HALF_PRECISION)
    return Check(name, OK, ", ".join(kinds))


NOTHING_TRAINABLE = (
    "call model.requires_grad_(True), or load an adapter with PeftModel.from_pretrained(.., is_trainable=True)"
)
HALF_PRECISION = (
    'load the model with dtype=torch.float32, and pass Accelerator(mixed_precision="bf16") for speed: steps of AdamW '
    "on bf16 weights are rounded away"
)
_REFERENCE = "the reference is not the policy at its start: pass ref_model, or set beta=0, and report the class"
