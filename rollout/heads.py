"""Hidden states and logits apart: a model's own forward, stopped before its head or begun after its decoder."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from .attention import tree_masks
from .limits import constant_rotary_length, text_config


class HeadSplit:
    """Runs a causal language model in two halves, so that logits can be made for chosen positions only.

    Whatever lies between decoder and logits (norms, projections, scales, caps, masks) is the model's own code: its
    forward is called both times, with the decoder replaced inside it. In the first half the decoder runs and everything
    after it is left out; in the second the decoder answers with the hidden states it is given.

    Args:
        model: a Hugging Face causal language model, or a peft model around one.

    Attributes:
        max_length: tokens of the longest row whose positions mean the same in rows of any length, or None for no limit.

    Raises:
        ValueError: a model that cannot be scored this way, with its class.
    """

    def __init__(self, model: Any):
        base = _base(model)
        self.name = type(base).__name__
        check_causal(base, _adapter(model))
        self.places = _decoder_places(base)
        if not self.places:
            self._refuse("keep its decoder in a module of its own, apart from its output embedding")
        self.max_length = constant_rotary_length(text_config(base))
        self.options = {"use_cache": False} if _accepts(base, "use_cache") else {}
        self._make: Callable[[Tensor], Any] | None = None
        self._checked = False

    def hidden(
        self, model: Any, input_ids: Tensor, position_ids: Tensor | None = None, ends: Tensor | None = None
    ) -> Tensor:
        """``[B, S, H]`` hidden states of ``input_ids [B, S]``.

        Args:
            model, input_ids: what runs on what.
            position_ids, ends: ``[B, S]`` of sequences that hold trees, see `turncredit.rollout.attention.tree_masks`.

        Raises:
            ValueError: rows longer than `max_length`; at the first call, a model that looks ahead or cannot be split.
        """
        if self.max_length is not None and input_ids.shape[1] > self.max_length:
            longest = input_ids.shape[1] if position_ids is None else int(position_ids.max()) + 1
            if longest > self.max_length:
                raise ValueError(
                    f"PolicyScorer: rows must be at most {self.max_length} tokens long, where the rotary frequencies "
                    f"of {self.name} begin to change with length, got {longest}; lower max_prompt_length"
                )
        if not self._checked:
            self._check_direction(model, input_ids)
            self._checked = True
        if ends is None:
            return self._run_decoder(model, input_ids)
        assert position_ids is not None
        mask = tree_masks(model, ends, position_ids)
        return self._run_decoder(model, input_ids, {"attention_mask": mask, "position_ids": position_ids})

    def _run_decoder(self, model: Any, input_ids: Tensor, options: Mapping[str, Any] = MappingProxyType({})) -> Tensor:
        outputs: list[Any] = []
        running: list[nn.Module] = []

        def visit(module: nn.Module, arguments: Any, options: Any) -> Any:
            if running:  # inside an outer candidate
                return module(*arguments, **options)
            running.append(module)
            outputs.append(module(*arguments, **options))
            raise _DecoderDone

        with self._decoder_replaced(model, visit), contextlib.suppress(_DecoderDone):
            model.forward(input_ids=input_ids, **self.options, **options)
        if not outputs:
            self._refuse("call its decoder as a module")
        if self._make is None:
            self.places = [place for place in self.places if _at(_base(model), place) is running[0]]
            self._make = _output_maker(outputs[0])
        hidden = outputs[0] if isinstance(outputs[0], Tensor) else outputs[0][0]
        if hidden.dim() != 3 or hidden.shape[:2] != input_ids.shape:
            self._refuse(f"have hidden states [B, S, H] for ids [B, S], got {_shape(hidden)} for {_shape(input_ids)}")
        return hidden

    @torch.no_grad()
    def _check_direction(self, model: Any, input_ids: Tensor) -> None:
        """A few tokens alone and with more behind them must have the same hidden states."""
        few = input_ids[:1, :3]
        was_training = model.training
        model.eval()
        try:
            alone, followed = self._run_decoder(model, few), self._run_decoder(model, few.repeat(1, 2))
        finally:
            model.train(was_training)
        tolerance = 1e-3 if alone.dtype == torch.float32 else 0.05
        alone, followed = alone.float(), followed[:, : few.shape[1]].float()
        # rounding can send one token to another expert, but it does not move them all
        change = float(((followed - alone).norm(dim=-1) / alone.norm(dim=-1).clamp(min=1e-12)).min())
        if change > tolerance:
            self._refuse(f"not look ahead (tokens behind others change their hidden states by {change:.1%})")

    def logits(self, model: Any, input_ids: Tensor, hidden: Tensor) -> Tensor:
        """``[n, V]`` logits of ``hidden [n, H]``, which stand at tokens ``input_ids [n]``, by the model's own head."""
        calls = 0

        def visit(module: nn.Module, arguments: Any, options: Any) -> Any:
            nonlocal calls
            calls += 1
            assert self._make is not None
            return self._make(hidden[None])

        with self._decoder_replaced(model, visit):
            try:
                result = model.forward(input_ids=input_ids[None], **self.options)
            except (TypeError, AttributeError, LookupError) as error:
                self._refuse(f"make its logits from the hidden states alone ({type(error).__name__}: {error})", error)
        logits = result[0] if isinstance(result, tuple) else getattr(result, "logits", None)
        if calls != 1 or logits is None or logits.dim() != 3 or logits.shape[:2] != (1, len(hidden)):
            self._refuse(f"make one row of logits per hidden state, got {_shape(logits)} for {_shape(hidden)}")
        return logits[0]

    def _refuse(self, rule: str, cause: Exception | None = None) -> NoReturn:
        raise ValueError(
            f"PolicyScorer: model must {rule}, got {self.name}; take a decoder-only model of another class"
        ) from cause

    @contextlib.contextmanager
    def _decoder_replaced(self, model: Any, visit: Callable[..., Any]) -> Iterator[None]:
        base = _base(model)
        replaced = []
        for place in reversed(self.places):  # inner ones first: an outer one hides them
            parent, name = _at(base, place[:-1]), place[-1]
            replaced.append((parent, name, parent._modules[name]))
            parent._modules[name] = _Replaced(parent._modules[name], visit)
        try:
            yield
        finally:
            for parent, name, module in replaced:
                parent._modules[name] = module


class _DecoderDone(Exception):
    """Leaves a model's forward once its decoder has run."""


class _Replaced(nn.Module):
    """Stands where a decoder stood: its calls go to `visit`, all else to the decoder itself."""

    def __init__(self, module: Any, visit: Callable[..., Any]):
        super().__init__()
        self.original = module
        self.visit = visit
        self.training = module.training

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self.visit(self.original, arguments, options)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("original"), name)


def check_causal(base: Any, adapter: Any = None) -> None:
    """Refuse models whose scores at a position would depend on later tokens or on another input.

    Raises:
        ValueError: encoder-decoders, bidirectional models, prompt tuning, models without an output embedding.
    """
    name, config = type(base).__name__, base.config
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"PolicyScorer: model must be decoder-only, got the encoder-decoder {name}; load a causal model"
        )
    if getattr(config, "is_decoder", None) is False and _looks_ahead(base):
        raise ValueError(
            f"PolicyScorer: model must not look ahead, got {name} with is_decoder=False; load it with is_decoder=True"
        )
    if adapter is not None and getattr(adapter, "is_prompt_learning", False):
        raise ValueError(
            f"PolicyScorer: model must have its adapter in its layers, got {type(adapter).__name__}, whose prompt "
            "tokens scoring would not see; use LoRA"
        )
    if base.get_output_embeddings() is None:
        raise ValueError(
            f"PolicyScorer: model must have an output embedding, got {name}; load it with AutoModelForCausalLM"
        )


def _adapter(model: Any) -> Any:
    """The active peft configuration, or None."""
    return getattr(model, "active_peft_config", None) if hasattr(model, "get_base_model") else None


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _looks_ahead(base: nn.Module) -> bool:
    return any(getattr(module, "is_causal", None) is False for module in base.modules())


def _decoder_places(base: Any) -> list[tuple[str, ...]]:
    """Paths of the modules that may be what the head reads, outermost first; none of them holds the head."""
    head = base.get_output_embeddings()
    names = {id(module): tuple(name.split(".")) for name, module in base.named_modules() if name}
    places: set[tuple[str, ...]] = set()
    owners = [base]
    for owner in owners:
        embedding = names.get(id(owner.get_input_embeddings()), ())
        places.update(embedding[:length] for length in range(1, len(embedding)))
        for module in (owner.get_decoder(), getattr(owner, "base_model", None)):
            path = names.get(id(module), ())
            if module is None or not path or module in owners:
                continue
            places.update(path[:length] for length in range(1, len(path) + 1))
            if (
                isinstance(module, nn.Module)
                and hasattr(module, "get_decoder")
                and any(m is head for m in module.modules())
            ):
                owners.append(module)  # a wrapper around a whole language model
    return sorted((p for p in places if not any(m is head for m in _at(base, p).modules())), key=len)


def _at(module: Any, path: tuple[str, ...]) -> Any:
    return module.get_submodule(".".join(path))


def _accepts(model: Any, option: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return option in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _make_output(kind: type, key: Any, hidden: Tensor) -> Any:
    """An output of a decoder's kind with these hidden states; all else in it belonged to whole rows and is left out."""
    if kind is Tensor:
        return hidden
    if kind is tuple:
        return (hidden, *[None] * (key - 1))
    return kind(**{key: hidden})


def _output_maker(output: Any) -> Callable[[Tensor], Any]:
    if isinstance(output, Tensor):
        return functools.partial(_make_output, Tensor, None)
    if isinstance(output, tuple):
        return functools.partial(_make_output, tuple, len(output))
    return functools.partial(_make_output, type(output), next(iter(output.keys())))


def _shape(tensor: Any) -> Any:
    return list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
