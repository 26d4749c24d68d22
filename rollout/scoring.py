"""Log-probs of given response ids under any context, never materialising [rows, tokens, vocabulary] logits at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import attention_cost, why_no_branches
from .divergence import KINDS, OWN, divergence
from .heads import HeadSplit
from .limits import check_row_lengths, embedding_rows, text_config
from .packing import Ids, Pack, pack, pack_rows, plan_packs

logger = logging.getLogger(__name__)

Agree = Callable[[Sequence[int]], Sequence[int]]
"""Counts of this process -> the largest of each over all processes."""


class PolicyScorer(nn.Module):
    """A causal language model seen as a scorer: token ids in, log-probs of chosen tokens out.

    Wrap the policy in this *before* ``accelerator.prepare``, so that data-parallel hooks see every forward. Hidden
    states are computed once; logits only at response positions, `chunk_tokens` at a time, by the model's own head
    (`HeadSplit`), their log-probs in float32, and recomputed in the backward pass instead of being kept.

    Modules can be attached to it, such as a value head: each reads hidden states ``[n, H]``, the decoder's before each
    scored token, whose logits are made from them, and answers ``[n, ...]``. Their weights are the scorer's
    (``attached.NAME...``): trained, reduced and sharded with the policy's. Their gradients reach the policy.

    Args:
        model: a Hugging Face causal language model (or a peft model around one).
        modules: to attach, by name.
        chunk_tokens: response tokens whose logits exist at once; None takes as many as make 2**27, at most 4,096.

    Attributes:
        branches: whether rows that part after a common beginning may share it in one sequence; None until
            `settle_branches` has found out.
        beside: the teacher whose head makes the logits of `forward`'s ``teacher_hidden``, if it is another model.

    Raises:
        ValueError: a model that cannot be scored right, by its class.
    """

    branches: bool | None = None
    beside: tuple[PolicyScorer, ...] = ()

    def __init__(self, model: Any, modules: Mapping[str, nn.Module] | None = None, *, chunk_tokens: int | None = None):
        super().__init__()
        if chunk_tokens is None:
            chunk_tokens = min(4096, max(2**27 // embedding_rows(model), 1))
        if chunk_tokens < 1:
            raise ValueError(f"PolicyScorer: chunk_tokens must be at least 1, got {chunk_tokens}")
        self.model = model
        self.attached = nn.ModuleDict(dict(sorted((modules or {}).items())))
        self.chunk_tokens = chunk_tokens
        self.train(model.training)
        self._split = HeadSplit(model)

    @property
    def config(self) -> Any:
        """The model's configuration; Accelerate reads the hidden size for ZeRO-3's buffers from it."""
        return self.model.config

    def settle_branches(self) -> bool:
        """Try once, before weights are sharded, whether a tree in one sequence gives what separate rows give."""
        if self.branches is None:
            reason = why_no_branches(self.model, self._split.hidden)
            self.branches = reason is None
            if reason is not None:
                logger.warning(
                    "%s: rows share a beginning only where one continues another: %s", self._split.name, reason
                )
        return self.branches

    @property
    def attention_cost(self) -> float:
        """What attending to one more key costs, where the rest of a token's work is 1; see `plan_packs`."""
        return attention_cost(self.model)

    def chunks_for(self, tokens: int) -> int:
        """How often `forward` visits the output embedding for so many unique positions."""
        return -(-tokens // self.chunk_tokens)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        targets: Tensor,
        temperature: float = 1.0,
        entropy: bool = False,
        min_chunks: int = 0,
        modules: Sequence[str] = (),
        picks: Tensor | None = None,
        position_ids: Tensor | None = None,
        ends: Tensor | None = None,
        *,
        teacher_hidden: Tensor | None = None,
        kind: str = "",
    ) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Score ``targets`` at ``positions`` (see `PackedRows`).

        Args:
            input_ids, positions, targets: see `PackedRows`.
            temperature: divides the logits; 0 counts as 1.
            entropy: also return the entropy of every scored position.
            min_chunks: visit the output embedding at least this often: where its weight is sharded (ZeRO-3) every visit
                is a collective call, and processes with fewer tokens must not be short of one.
            modules: attached modules whose outputs are wanted; ``"hidden"`` is what they read.
            picks, position_ids, ends: see `PackedRows`.
            teacher_hidden: ``[n, H]`` hidden states of a teacher before each target, which it may have read elsewhere;
                its logits are made a chunk at a time, without gradient, by its own head (`beside`).
            kind: which divergence from them is wanted, see `turncredit.rollout.divergence`.

        Returns:
            ``logprobs [n]`` float32 of ``softmax(logits / temperature)``, in nats, and ``entropy [n]`` (or None); with
            `modules` or `kind` also outputs by name, ``[n, ...]`` float32, the divergence as ``"divergence"``.

        Raises:
            ValueError: a module that is not attached, or whose output is not ``[n, ...]``.
        """
        hidden = self._split.hidden(self.model, input_ids, position_ids, ends)
        hidden, tokens = hidden.flatten(0, 1)[positions], input_ids.flatten()[positions]
        outputs = {name: self._output(name, hidden) for name in modules}
        chunks = max(self.chunks_for(len(positions)), min_chunks)
        order, bounds = self._targets_of_chunks(picks, len(positions), chunks)
        logprobs, entropies, apart = [], [], []
        for number in range(chunks):
            chunk = slice(number * self.chunk_tokens, (number + 1) * self.chunk_tokens)
            spare = chunk.start >= len(positions)  # nothing to score: a visit for the others' sake, with one row
            chunk = slice(0, 1) if spare else chunk
            own: Any = chunk
            if picks is not None:
                own = slice(0, 0) if spare else slice(bounds[number], bounds[number + 1])
                own = own if order is None else order[own]
            inside = None if picks is None else picks[own] - chunk.start
            other = None if teacher_hidden is None else teacher_hidden[own]
            arguments = (hidden[chunk], tokens[chunk], targets[own], temperature, entropy, inside, other, kind)
            # one chunk is small enough to keep; with more, keeping them all would be the tensor we avoid
            if torch.is_grad_enabled() and chunks > 1:
                score, ent, gap = checkpoint(self._score_chunk, *arguments, use_reentrant=False)  # type: ignore[misc]
            else:
                score, ent, gap = self._score_chunk(*arguments)
            logprobs.append(score[:0] if spare else score)
            entropies.append(ent[:0] if spare and ent is not None else ent)
            apart.append(gap[:0] if spare and gap is not None else gap)
        score, ent = torch.cat(logprobs), torch.cat(entropies) if entropy else None
        if picks is not None:
            score = score if order is None else torch.zeros_like(score).scatter(0, order, score)
            ent = None if ent is None else ent[picks]
            outputs = {name: values[picks] for name, values in outputs.items()}
        if kind:
            gap = torch.cat(apart)
            outputs["divergence"] = gap if order is None else torch.zeros_like(gap).index_copy(0, order, gap)
        return (score, ent, outputs) if modules or kind else (score, ent)

    def _targets_of_chunks(self, picks: Tensor | None, places: int, chunks: int) -> tuple[Tensor | None, list[int]]:
        """Targets in the order of their places, where that is not any order, and where each chunk's begin and end."""
        if picks is None or chunks == 1:
            return None, [0, 0 if picks is None else len(picks)]
        ordered, order = picks.sort(stable=True)
        edges = torch.arange(chunks + 1, device=picks.device) * self.chunk_tokens
        return order, torch.searchsorted(ordered, edges.clamp(max=places)).tolist()

    def _output(self, name: str, hidden: Tensor) -> Tensor:
        if name == "hidden":
            return hidden.float()
        if name not in self.attached:
            raise ValueError(
                f"PolicyScorer: modules must be among the attached ones, {list(self.attached)}, got {name!r}; attach "
                "it or correct the name"
            )
        module = self.attached[name]
        kind = next((parameter.dtype for parameter in module.parameters()), hidden.dtype)
        output = module(hidden.to(kind))
        if not isinstance(output, Tensor) or output.shape[:1] != hidden.shape[:1]:
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(
                f"PolicyScorer: the module {name!r} must answer a tensor [n, ...] for hidden states [n, H] = "
                f"{list(hidden.shape)}, got {got}; give one output per position"
            )
        return output.float()

    def _score_chunk(
        self,
        hidden: Tensor,
        tokens: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        picks: Tensor | None,
        teacher_hidden: Tensor | None = None,
        kind: str = "",
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logits = self._split.logits(self.model, tokens, hidden).float()
        if temperature not in (0.0, 1.0):
            logits = logits / temperature
        log_all = logits.log_softmax(-1)
        score = log_all.gather(-1, targets[:, None]).squeeze(-1) if picks is None else log_all[picks, targets]
        gap = None
        if teacher_hidden is not None:
            other = self._teacher_logprobs(teacher_hidden.to(hidden.dtype), targets, temperature, kind)
            gap = divergence(log_all if picks is None else log_all[picks], other, kind, targets)
        if not entropy:
            return score, None, gap
        # a token that the model rules out (-inf) adds 0, and 0 to the gradient; 0 * -inf would be NaN
        return score, -(log_all.exp() * log_all.clamp(min=torch.finfo(log_all.dtype).min)).sum(-1), gap

    @torch.no_grad()
    def _teacher_logprobs(self, hidden: Tensor, tokens: Tensor, temperature: float, kind: str) -> Tensor:
        """``[n, V]`` by the head of the teacher of that kind; a visit to the head also where n is 0."""
        teacher, count = self._teacher(kind), len(hidden)
        if not count:
            hidden, tokens = hidden.new_zeros(1, hidden.shape[1]), tokens.new_zeros(1)
        logits = teacher._split.logits(teacher.model, tokens, hidden).float()[:count]
        return (logits if temperature in (0.0, 1.0) else logits / temperature).log_softmax(-1)

    def teacher_width(self, kind: str) -> int:
        """H of ``teacher_hidden`` for a kind of divergence."""
        return text_config(self._teacher(kind).model).hidden_size

    def _teacher(self, kind: str) -> PolicyScorer:
        return self if kind in OWN else (self.beside or (self,))[0]


@dataclass(frozen=True)
class ResponseScores:
    """Scores of M responses, padded on the right.

    Args:
        logprobs: ``[M, T]`` float32 on the CPU, nats; 0 outside ``mask``.
        mask: ``[M, T]`` bool, True where a response token stands.
        entropy: ``[M, T]`` float32, nats, or None.
        outputs: of the attached modules that were asked for, by name: ``[M, T, ...]`` float32, 0 outside ``mask``.
        packs: how the rows were computed.
    """

    logprobs: Tensor
    mask: Tensor
    entropy: Tensor | None = None
    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    packs: Sequence[Pack] = ()


@torch.no_grad()
def score_responses(
    scorer: Any,
    prompts: Sequence[Ids],
    responses: Sequence[Ids],
    *,
    pad_token_id: int,
    temperature: float = 1.0,
    max_tokens: int = 16384,
    entropy: bool = False,
    modules: Sequence[str] = (),
    agree: Agree | None = None,
    share_prefixes: bool = True,
    teacher_hidden: Tensor | None = None,
    kind: str = "",
) -> ResponseScores:
    """Log-probs of M responses, each under its own prompt, in micro-batches of sequences of similar length.

    Args:
        scorer: a `PolicyScorer`, bare or wrapped by DDP or DeepSpeed.
        prompts: M prompts; the student's, or the teacher's for the same responses.
        responses: M responses, the sampled ids.
        pad_token_id: any id; pads are never read.
        temperature: the sampling temperature (log-probs follow it); 0 is scored at 1.
        max_tokens: sequences x longest sequence in one forward pass.
        entropy: also return the entropy at every response position.
        modules: attached modules whose outputs at every response position are returned too.
        agree: takes counts and returns their largest over all processes; given where every forward pass is a collective
            call (ZeRO-3), so that all processes run equally many. Every process must then call this function.
        share_prefixes: compute tokens once that rows have in common (see `plan_packs`); False computes every row by
            itself.
        teacher_hidden: ``[M, T, H]`` float32, see `PolicyScorer.forward`.
        kind: of divergence from it, among the outputs as ``"divergence"``.

    Raises:
        ValueError: the numbers of prompts and responses differ, one of them is empty, a row is longer than the
            model's positions, or a kind that there is not.
    """
    if kind and kind not in KINDS:
        raise ValueError(f"score_responses: kind must be one of {KINDS}, got {kind!r}; write one of them")
    if len(prompts) != len(responses):
        raise ValueError(
            f"score_responses: responses must have one entry per prompt, got {len(responses)} for {len(prompts)}"
        )
    if any(len(ids) == 0 for ids in (*prompts, *responses)):
        raise ValueError("score_responses: prompts and responses must not be empty; drop such turns first")
    module = scorer.module if hasattr(scorer, "module") else scorer
    check_row_lengths("score_responses", module.model, prompts, responses)
    device = module.model.get_input_embeddings().weight.device
    width = max((len(response) for response in responses), default=0)
    mask = torch.arange(width)[None] < torch.tensor([len(r) for r in responses], dtype=torch.long)[:, None]
    logprobs = torch.zeros(len(responses), width)
    entropies = torch.zeros(len(responses), width) if entropy else None
    wanted = (*modules, "divergence") if kind else modules
    outputs: dict[str, Tensor] = {name: torch.zeros(len(responses), width) for name in wanted}
    plan = plan_packs(
        prompts,
        responses,
        max_tokens,
        branches=share_prefixes and module.settle_branches(),
        attention_cost=module.attention_cost,
        share=share_prefixes,
    )
    packed = [pack(entry, prompts, responses, pad_token_id) for entry in plan]
    batches, chunks = len(plan), 0
    if agree is not None:
        chunks = max((module.chunks_for(len(rows.positions)) for rows in packed), default=1)
        batches, chunks = agree([batches, chunks])
    packed += [pack_rows([[0]], [[0]], pad_token_id)] * (batches - len(plan))
    was_training = module.training
    module.eval()
    try:
        for number, rows in enumerate(packed):
            real = number < len(plan)
            asked = (temperature, entropy and real, chunks, tuple(modules))
            index = torch.tensor(plan[number].rows if real else [], dtype=torch.long)
            inside = mask[index]
            beside: dict[str, Any] = {}
            if kind and teacher_hidden is not None:
                hidden = teacher_hidden[index][inside] if real else torch.zeros(1, module.teacher_width(kind))
                beside = {"teacher_hidden": hidden.to(device), "kind": kind}
            score, ent, *found = scorer(*rows.to(device).inputs(*asked), **beside)
            if not real:
                continue
            logprobs[index] = logprobs[index].masked_scatter(inside, score.float().cpu())
            if entropies is not None and ent is not None:
                entropies[index] = entropies[index].masked_scatter(inside, ent.float().cpu())
            for name, values in (found[0] if found else {}).items():
                if outputs[name].shape[2:] != values.shape[1:]:
                    outputs[name] = torch.zeros(len(responses), width, *values.shape[1:])
                row, column = inside.nonzero().unbind(1)
                outputs[name][index[row], column] = values.cpu()
    finally:
        module.train(was_training)
    return ResponseScores(logprobs, mask, entropies, outputs, plan)
