"""A trajectory as HTML: its tokens shaded by gap or advantage. One file, no script, everything escaped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from ...inputs import Credit, CreditInputs
from ._frame import check_credit, check_rows, outcome, rows_of
from ._shades import without_credit

_MORE, _LESS = "0,114,178", "213,94,0"
_STYLE = (
    ".tc{font:14px/1.7 system-ui,sans-serif;color:#222;background:#fff;max-width:60em;padding:.6em 1em}"
    ".tc h3{font-size:15px;margin:.2em 0}.tc .turn{border-left:3px solid #ccc;padding:.1em .8em;margin:.7em 0}"
    ".tc .head{color:#666;font-size:12px}.tc .seen{color:#555;white-space:pre-wrap;font-size:13px}"
    ".tc .said{white-space:pre-wrap;font-family:ui-monospace,monospace;font-size:13px}"
    ".tc .said span{border-radius:2px;padding:1px 0}.tc .key span{padding:1px 6px;margin-right:4px;color:#222}"
    f".tc .less{{border-bottom:2px solid rgb({_LESS})}}.tc .none{{font-weight:600}}"
)


@dataclass(frozen=True)
class TokenView:
    """HTML that a notebook displays and :meth:`save` writes to one self-contained file.

    Args:
        html: the fragment.
        title: of the saved page.
    """

    html: str = field(repr=False)
    title: str = "turncredit"

    def _repr_html_(self) -> str:
        return self.html

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a whole page; returns its path."""
        page = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{escape(self.title)}</title></head><body>{self.html}</body></html>\n"
        )
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)


def view_tokens(
    inputs: CreditInputs,
    trajectory: int,
    tokens: Sequence[Sequence[str]],
    *,
    credit: Credit | None = None,
    values: Tensor | None = None,
    observations: Sequence[str] | None = None,
    title: str | None = None,
) -> TokenView:
    """The tokens of one trajectory, each shaded by a value: blue above 0, orange and underlined below, none at 0.

    The shade is full at the largest size in the trajectory; where all are 0 a sentence says so.

    Args:
        inputs: the batch.
        trajectory: index of the trajectory.
        tokens: M lists, the text of each sampled token of each row.
        credit: shade by this credit's advantages.
        values: ``[M, T]`` float to shade by instead. Without either, the teacher's gap (nats).
        observations: M texts, what the policy saw before each turn.
        title: above the view.

    Returns:
        TokenView. Pointing at a token shows its value.

    Raises:
        ValueError: the trajectory does not exist, a length or shape does not fit the batch, a value of a sampled token
            is not finite, both credit and values are given, or neither while the batch has no teacher.
    """
    where = "view_tokens"
    check_rows(where, "tokens", tokens, inputs)
    check_rows(where, "observations", observations, inputs)
    name, shade = _values(where, inputs, credit, values)
    rows = rows_of(where, inputs, trajectory)
    for row in map(int, rows):
        count = int(inputs.token_counts[row])
        if len(tokens[row]) != count:
            raise ValueError(
                f"{where}: tokens must have one text per sampled token, got {len(tokens[row])} for {count} in row "
                f"{row}; decode the response ids one by one"
            )
    known = torch.where(inputs.response_mask, shade.detach().double(), 0.0)[rows]
    if not bool(known.isfinite().all()):
        raise ValueError(f"{where}: values must be finite where a token was sampled, got nan or inf; leave none out")
    limit = float(known.abs().max())
    turns = []
    for line, row in enumerate(map(int, rows)):
        kept = known[line][inputs.response_mask[row].cpu()].tolist()
        seen = "" if observations is None else f'<div class="seen">{escape(observations[row])}</div>'
        said = "".join(_token(text, value, limit) for text, value in zip(tokens[row], kept, strict=True))
        number = int(inputs.turn_ids[row]) + 1
        head = f"turn {number} · {name}: sum {_signed(sum(kept), 3)}, mean {_signed(sum(kept) / len(kept), 3)}"
        if credit is not None:
            head += f" · weight {float(credit.turn_weights[row]):.3f}"
        turns.append(f'<div class="turn"><div class="head">{head}</div>{seen}<div class="said">{said}</div></div>')
    heading = title or f"Trajectory {trajectory}"
    html = (
        f'<div class="tc"><style>{_STYLE}</style><h3>{escape(heading)}</h3>'
        f'<div class="head">{escape(outcome(inputs, trajectory))}</div>'
        f"{_key(inputs, trajectory, credit, known, name)}{''.join(turns)}</div>"
    )
    return TokenView(html, heading)


def _values(where: str, inputs: CreditInputs, credit: Credit | None, values: Tensor | None) -> tuple[str, Tensor]:
    if credit is not None and values is not None:
        raise ValueError(f"{where}: values must be None where credit is given, got both; choose one to shade by")
    if credit is not None:
        check_credit(where, credit, inputs)
        return "advantage", credit.advantages
    if values is not None:
        if values.shape != inputs.response_mask.shape:
            raise ValueError(
                f"{where}: values must be [M, T] = {list(inputs.response_mask.shape)}, got {list(values.shape)}; "
                "give one value per token"
            )
        return "value", values
    if inputs.teacher_logprobs is None:
        raise ValueError(
            f"{where}: credit must be given where the batch has no teacher_logprobs, got None; pass credit or values"
        )
    return "gap (nats)", inputs.teacher_logprobs - inputs.student_logprobs


def _key(inputs: CreditInputs, trajectory: int, credit: Credit | None, known: Tensor, name: str) -> str:
    """What shades mean; where none is seen, why."""
    limit = float(known.abs().max())
    if limit == 0:
        every = f"Every {name} of this trajectory is 0."
        said = every if credit is None else without_credit(inputs, [trajectory], known, "this trajectory")
        return f'<div class="none">{escape(said)}</div>'
    marks = "".join(_span(f"{share * limit:+.3g}" if share else "0", share) for share in (-1.0, -0.5, 0.0, 0.5, 1.0))
    return f'<div class="head key said">{escape(name)}: {marks} (below 0: underlined)</div>'


def _span(text: str, share: float, hint: str = "") -> str:
    """A text in its shade; ``share`` of the largest size, from -1 to 1."""
    kind = ' class="less"' if share < 0 else ""
    shade = f"background:rgba({_LESS if share < 0 else _MORE},{abs(share) * 0.75:.3f})" if share else ""
    return f'<span{kind} style="{shade}"{hint}>{escape(text)}</span>'


def _signed(value: float, digits: int) -> str:
    """With its sign, and none before zero."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


def _token(text: str, value: float, limit: float) -> str:
    shown = text.replace("\n", "↵\n")
    return _span(shown, value / limit if limit else 0.0, f' title="{_signed(value, 4)}"')
