"""One question at a time: search, read, search again, answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..base import Observation, StepResult
from .answers import exact_match, extract_answer, sub_exact_match
from .data import Question
from .prompts import parse_response
from .retrieval import Document, NoListsError, RetrievalError, Retriever, error_block, information_block

Anchor = Literal["observation", "situation"]


class SearchQAEnv:
    """Multi-turn question answering with a search engine.

    The first observation is the question. A search brings back passages as an information block; an answer ends the
    episode with reward 1 if it matches a gold answer exactly after normalisation, else 0. The episode also ends at
    `max_turns`, where a search is not carried out any more. An action without a complete block, or an empty query,
    brings back an empty observation and is invalid; one with both tags or a repeated tag is invalid though executed.
    Only the action is ever read for an answer, so tags inside passages mean nothing.

    A search that fails does not end the episode: the agent reads that the search failed, and the step's info holds
    ``retrieval_error`` (a short word) and ``retrieval_message``.

    Info of a step: ``data_source``, ``tool_calling`` (whether the turn was spent on search), ``tool_input`` (the query,
    or None), ``searches`` so far; of the last one also ``answer``, ``em`` and ``sub_em``.

    Args:
        questions: the question of each task id.
        retriever: finds passages; not closed by this environment, because several may share it.
        max_turns: turns of an episode.
        topk: passages per search.
        anchor: what GiGPO compares to find the same state again: ``"observation"`` is the observation's text alone, as
            in the published code; ``"situation"`` is the question with everything that came back so far.
        strict_original: behave like the published code in every detail: an empty query is a valid turn and sent, a
            search without passages brings back an empty result and a reply without any list the words for none, and
            answers are compared as `exact_match` says.

    Raises:
        ValueError: a number is not positive, or the anchor is not known.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        retriever: Retriever,
        *,
        max_turns: int = 4,
        topk: int = 3,
        anchor: Anchor = "observation",
        strict_original: bool = False,
    ) -> None:
        for name, value, usual in (("max_turns", max_turns, 4), ("topk", topk, 3)):
            if value < 1:
                raise ValueError(f"SearchQAEnv: {name} must be at least 1, got {value}; {usual} is the usual value")
        if anchor not in ("observation", "situation"):
            raise ValueError(
                f'SearchQAEnv: anchor must be "observation" or "situation", got {anchor!r}; '
                'leave it out for "observation"'
            )
        self._questions = questions
        self._retriever = retriever
        self._max_turns = max_turns
        self._topk = topk
        self._anchor = anchor
        self._strict = strict_original
        self._question: Question | None = None

    def reset(self, task_id: str) -> Observation:
        """Start the question `task_id`.

        Raises:
            KeyError: there is no such question.
        """
        self._question = None
        if task_id not in self._questions:
            raise KeyError(
                f"SearchQAEnv: task_id must be one of the {len(self._questions)} questions, got {task_id!r}; "
                "take it from tasks(split)"
            )
        self._question = self._questions[task_id]
        self._turn = self._searches = 0
        self._done = False
        self._seen: list[str] = []
        return self._observe(self._question.question)

    def step(self, action: str) -> StepResult:
        """Take one action; after the end nothing happens any more, and no reward can be earned.

        Raises:
            ValueError: no episode was started.
        """
        if self._question is None:
            raise ValueError("SearchQAEnv.step: an episode must be running, got none; call reset(task_id) first")
        if self._done:
            return StepResult(self._observe(""), done=True, valid=False, info=self._info(False))
        parsed = parse_response(action)
        self._turn += 1
        if parsed.action.startswith("<answer>"):
            return self._finish(extract_answer(parsed.action), parsed.valid)
        query = parsed.action.removeprefix("<search>").removesuffix("</search>")
        sent = bool(query) or (self._strict and bool(parsed.action))
        valid = parsed.valid and sent
        if self._turn >= self._max_turns:
            return self._finish(None, valid)
        if not sent:
            return StepResult(self._observe(""), valid=False, info={**self._info(True), "tool_input": None})
        text, trouble = self._search(query)
        return StepResult(self._observe(text), valid=valid, info={**self._info(True), "tool_input": query, **trouble})

    def replay(self, task_id: str, actions: Sequence[str]) -> Observation:
        """Start `task_id` and take `actions`; returns the observation of the turn they lead to.

        The searches are carried out again: the result is the same as long as the retriever's is.

        Raises:
            KeyError: there is no such question.
            ValueError: the episode ends before the last action.
        """
        observation = self.reset(task_id)
        for number, action in enumerate(actions, start=1):
            if self._done:
                raise ValueError(
                    f"SearchQAEnv.replay: actions must stop before the episode ends, got {len(actions)} actions for "
                    f"an episode that was over after {number - 1}; pass a shorter prefix"
                )
            observation = self.step(action).observation
        return observation

    def close(self) -> None:
        """Forget the episode."""
        self._question = None

    def _search(self, query: str) -> tuple[str, dict[str, Any]]:
        self._searches += 1
        try:
            found: list[list[Document]] | None = self._retriever.search([query], self._topk)
        except RetrievalError as error:
            if self._strict and isinstance(error, NoListsError):
                return information_block([]), {}
            return error_block(error.cause), {"retrieval_error": error.cause, "retrieval_message": error.message}
        if found == [] and self._strict:
            return information_block([]), {}
        if not found:
            trouble = {"retrieval_error": "no_reply", "retrieval_message": "the retriever returned nothing"}
            return information_block(None), trouble
        return information_block(found[0][: self._topk], strict_original=self._strict), {}

    def _finish(self, answer: str | None, valid: bool) -> StepResult:
        assert self._question is not None
        self._done = True
        golds = self._question.answers
        right = answer is not None and exact_match(answer, golds, strict_original=self._strict)
        partly = answer is not None and sub_exact_match(answer, golds, strict_original=self._strict)
        info = {**self._info(False), "answer": answer, "em": float(right), "sub_em": float(partly)}
        return StepResult(self._observe(""), float(right), done=True, success=right, valid=valid, info=info)

    def _info(self, tool_calling: bool) -> dict[str, Any]:
        assert self._question is not None
        return {
            "data_source": self._question.data_source,
            "tool_calling": tool_calling,
            "searches": self._searches,
        }

    def _observe(self, text: str) -> Observation:
        assert self._question is not None
        self._seen.append(text)
        anchor = text if self._anchor == "observation" else "\n".join(self._seen)
        info = {"data_source": self._question.data_source, "question": self._question.question, "turn": self._turn}
        return Observation(text, (), anchor, info)
