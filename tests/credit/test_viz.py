"""Pictures show the numbers they were given, print text as it stands, and touch no global state; HTML is escaped."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from turncredit.credit.align import align_opsd
from turncredit.credit.lab.synthetic import SyntheticBatch, key_door, synthetic_batch
from turncredit.credit.lab.viz import plot_fidelity, plot_group, plot_methods, plot_trajectory_credit, view_tokens
from turncredit.credit.registry import get_credit

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

pytest.importorskip("matplotlib")
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebooks" / "credit_on_saved_trajectories.ipynb"
HOSTILE = "pay $5 for $x_{ <b>&\\frac\nnow"


@pytest.fixture(scope="module")
def batch() -> SyntheticBatch:
    return synthetic_batch(key_door(), groups=3, group_size=4, generator=torch.Generator().manual_seed(1))


def texts(figure: Figure) -> list[str]:
    from matplotlib.text import Text

    return [item.get_text() for item in figure.findobj(Text)]  # type: ignore[attr-defined]


def ticks_of(figure: Figure) -> list[Text]:
    return figure.axes[0].get_yticklabels()


def test_a_trajectory_shows_its_beliefs_weights_and_truth(batch: SyntheticBatch, tmp_path: Path) -> None:
    credit = get_credit("agent_opsd")(batch.inputs)
    figure = plot_trajectory_credit(credit, batch.inputs, 2, exact_advantages=batch.advantages, title="Mine")
    rows = (batch.inputs.trajectory_ids == 2).nonzero().flatten()
    belief, weight, exact = figure.axes
    line = belief.lines[0].get_ydata()
    assert line[0] == pytest.approx(float(credit.details["prior"][rows[0]]))
    assert list(line[1:]) == pytest.approx(credit.details["beliefs"][rows].tolist())
    assert [bar.get_height() for bar in belief.patches[1:]] == pytest.approx(
        credit.details["revisions"][rows].tolist(), abs=1e-6
    )
    assert [bar.get_height() + 1 for bar in weight.patches] == pytest.approx(credit.turn_weights[rows].tolist())
    assert [bar.get_height() for bar in exact.patches] == pytest.approx(batch.advantages[rows].tolist())
    assert any(text.startswith("Mine") for text in texts(figure))
    figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_rows_in_any_order_give_the_same_picture(batch: SyntheticBatch) -> None:
    from dataclasses import replace

    order = torch.randperm(batch.inputs.num_rows, generator=torch.Generator().manual_seed(0))
    fields = ("response_mask", "trajectory_ids", "turn_ids", "student_logprobs", "teacher_logprobs")
    moved = replace(
        batch.inputs, span_mask=None, anchor_ids=None, turn_rewards=None,
        **{name: getattr(batch.inputs, name)[order] for name in fields},
    )  # fmt: skip
    heights = []
    for inputs in (batch.inputs, moved):
        figure = plot_trajectory_credit(get_credit("agent_opsd")(inputs), inputs, 1)
        heights.append([bar.get_height() for bar in figure.axes[-1].patches])
    assert heights[0] == pytest.approx(heights[1], abs=1e-6)


def test_spans_are_marked_where_they_change(batch: SyntheticBatch) -> None:
    inputs = batch.with_sources()
    credit = align_opsd(inputs)
    rows = (inputs.trajectory_ids == 0).nonzero().flatten()
    spans = credit.details["spans"][rows].tolist()
    borders = [turn - 0.5 for turn in range(1, len(spans)) if spans[turn] != spans[turn - 1]]
    assert borders
    figure = plot_trajectory_credit(credit, inputs, 0)
    dashed = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert dashed == borders
    shaded = [patch for patch in figure.axes[0].patches if patch.get_alpha() == 0.10]
    assert len(shaded) == len({span for span in spans if span % 2})
    assert "mean gap" in figure.axes[0].get_ylabel()


def test_a_group_shows_every_turn_and_arrows_between_neighbours(batch: SyntheticBatch) -> None:
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    inputs = batch.with_sources()
    credit = align_opsd(inputs)
    members = (inputs.group_ids == 1).nonzero().flatten()
    rows = torch.isin(inputs.trajectory_ids, members)
    figure = plot_group(credit, inputs, 1)
    boxes = figure.axes[0].findobj(FancyBboxPatch)
    frames = [box for box in boxes if box.get_zorder() < 1]
    assert len(boxes) - len(frames) == int(rows.sum())
    spans = credit.details["spans"]
    pairs = {(int(inputs.trajectory_ids[row]), int(spans[row])) for row in rows.nonzero()}
    assert len(frames) == len(pairs) > len(members)
    assert sum(round(frame.get_width() + 0.06) for frame in frames) == int(rows.sum())
    assert "frame: span; arrow:" in figure.get_suptitle()
    assert inputs.correspondence is not None
    assert inputs.correspondence.sources is not None
    source, target = inputs.correspondence.sources.source, inputs.correspondence.sources.target
    near = (inputs.trajectory_ids[source] - inputs.trajectory_ids[target]).abs() == 1
    assert len(figure.axes[0].findobj(FancyArrowPatch)) == int((near & rows[source]).sum())
    fewer = plot_group(credit, batch.inputs, 1, max_trajectories=2)
    first = torch.isin(inputs.trajectory_ids, members[:2])
    assert sum(box.get_zorder() > 1 for box in fewer.axes[0].findobj(FancyBboxPatch)) == int(first.sum())
    assert "arrow" not in fewer.get_suptitle()
    assert not fewer.axes[0].findobj(FancyArrowPatch)


def test_methods_are_rows_of_relative_credit(batch: SyntheticBatch) -> None:
    results = {name: get_credit(name)(batch.inputs) for name in ("grpo", "agent_opsd")}
    figure = plot_methods(results, batch.inputs, 3, exact_advantages=batch.advantages)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["exact advantage", "grpo", "agent_opsd"]
    rows = (batch.inputs.trajectory_ids == 3).nonzero().flatten()
    numbers = [float(text.get_text()) for text in axes.texts]
    assert all(text.get_text()[0] in "+-0" for text in axes.texts), "a sign where there is one"
    count = len(rows)
    sign = 1.0 if float(results["grpo"].advantages[rows[0], 0]) > 0 else -1.0
    assert numbers[count : 2 * count] == [sign] * count
    turns = results["agent_opsd"].advantages[rows, 0].double()
    assert numbers[2 * count :] == pytest.approx((turns / turns.abs().mean()).tolist(), abs=0.0051)


def test_hostile_labels_are_printed_as_they_stand(batch: SyntheticBatch) -> None:
    from matplotlib.cbook import is_math_text

    labels = [HOSTILE] * batch.inputs.num_rows
    credit = get_credit("agent_opsd")(batch.inputs)
    for figure in (
        plot_trajectory_credit(credit, batch.inputs, 0, labels=labels, title=HOSTILE),
        plot_group(credit, batch.inputs, 0, labels=labels, title=HOSTILE),
        plot_methods({HOSTILE: credit}, batch.inputs, 0, labels=labels, title=HOSTILE),
    ):
        figure.draw_without_rendering()
        hostile = [text for text in texts(figure) if "pay" in text]
        assert hostile
        assert not any(is_math_text(text) for text in hostile)
        assert any(HOSTILE[:12] in text.replace(r"\$", "$") for text in hostile)


def test_pictures_need_no_pyplot_and_importing_needs_no_matplotlib() -> None:
    code = (
        "import sys, torch, turncredit.credit.lab.viz as viz\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from turncredit.credit.lab.synthetic import key_door, synthetic_batch\n"
        "from turncredit.credit import get_credit\n"
        "inputs = synthetic_batch(key_door(), groups=1, generator=torch.Generator()).inputs\n"
        "credit = get_credit('grpo')(inputs)\n"
        "assert viz.plot_trajectory_credit(credit, inputs, 0)._repr_png_()[:4] == b'\\x89PNG'\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'matplotlib']: sys.modules[name] = None\n"
        "from turncredit.credit.lab.viz import _frame\n"
        "_frame._shown_figure.cache_clear()\n"
        "try: viz.plot_trajectory_credit(credit, inputs, 0)\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "plot_trajectory_credit: matplotlib must be installed; pip install 'turncredit[viz]'"
    )


class Visible(HTMLParser):
    """Collects tags and visible text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_token_view_escapes_and_shades_by_the_gap(batch: SyntheticBatch, tmp_path: Path) -> None:
    inputs = batch.inputs
    assert inputs.teacher_logprobs is not None
    attack = '<script>alert("x")</script>&'
    tokens = [[f"{attack}{k}" for k in range(count)] for count in inputs.token_counts.tolist()]
    view = view_tokens(inputs, 0, tokens, observations=["<img src=x>"] * inputs.num_rows, title="<i>t</i>")
    seen = Visible(view._repr_html_())
    assert set(seen.tags) <= {"div", "style", "h3", "span"}
    assert attack + "0" in seen.text
    assert "<img src=x>" in seen.text
    row = int((inputs.trajectory_ids == 0).nonzero()[0, 0])
    gap = (inputs.teacher_logprobs - inputs.student_logprobs)[row][inputs.response_mask[row]]
    assert f'title="{float(gap[0]):+.4f}"' in view.html
    page = view.save(tmp_path / "view.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "<title>&lt;i&gt;t&lt;/i&gt;</title>" in page


def test_token_view_colours_by_sign_and_size(batch: SyntheticBatch) -> None:
    inputs = batch.inputs
    values = torch.zeros(inputs.response_mask.shape)
    row = int((inputs.trajectory_ids == 0).nonzero()[0, 0])
    values[row, :3] = torch.tensor([2.0, -1.0, 0.0])
    tokens = [[f"tok{k}" for k in range(count)] for count in inputs.token_counts.tolist()]
    html = view_tokens(inputs, 0, tokens, values=values).html
    first = re.findall(r'<span( class="less")? style="([^"]*)" title="([^"]+)">tok', html)[:3]
    assert first == [
        ("", "background:rgba(0,114,178,0.750)", "+2.0000"),
        (' class="less"', "background:rgba(213,94,0,0.375)", "-1.0000"),
        ("", "", "0.0000"),
    ]
    assert ">-2</span>" in html
    assert ">+1</span>" in html
    credit = get_credit("agent_opsd")(inputs)
    assert f"weight {float(credit.turn_weights[row]):.3f}" in view_tokens(inputs, 0, tokens, credit=credit).html


def test_fidelity_picture_has_a_block_per_family_a_panel_per_condition_and_intervals() -> None:
    scores = {
        "bad": {"t_u": (0.5, 0.1), "v": (0.6, 0.2)}, "good": {"t_u": (0.9, float("nan")), "v": (0.9, 0.0)},
        "other": {"t_u": (0.4, 0.3), "v": (0.3, 0.1)},
    }  # fmt: skip
    families = {"first": ["other"], "none": [], "second": ["bad", "good"]}
    figure = plot_fidelity(scores, families=families, intervals="95% interval over 5 seeds", note="groups of 8")
    ticks = {
        text.get_text(): height for height, text in zip(figure.axes[0].get_yticks(), ticks_of(figure), strict=True)
    }
    assert sorted(ticks, key=lambda name: -ticks[name]) == ["first", "other", "second", "good", "bad"]
    assert [text.get_text() for text in ticks_of(figure) if text.get_fontweight() == "bold"] == ["first", "second"]
    assert ticks["second"] - ticks["good"] == ticks["good"] - ticks["bad"] == 1 < ticks["other"] - ticks["second"]
    assert [axis.get_title() for axis in figure.axes] == ["t u", "v"]
    for axis, condition in zip(figure.axes, ("t_u", "v"), strict=True):
        points = [line for line in axis.lines if line.get_marker() in ("o", "s", "^")]
        marks = {line.get_ydata()[0]: (line.get_xdata()[0], line) for line in points}
        bars = {box.get_segments()[0][0, 1]: box.get_segments()[0][:, 0].tolist() for box in axis.collections}
        for name, (mean, half) in ((name, row[condition]) for name, row in scores.items()):
            assert marks[ticks[name]][0] == mean
            known = not math.isnan(half)
            assert (ticks[name] in bars) == known
            assert not known or bars[ticks[name]] == pytest.approx([mean - half, mean + half])
        shapes = {name: (marks[ticks[name]][1].get_marker(), marks[ticks[name]][1].get_color()) for name in scores}
        assert shapes["bad"] == shapes["good"] != shapes["other"]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["mean (mark and colour: family)", "95% interval over 5 seeds; one tick: narrower than its mark"]
    assert any("groups of 8" in text for text in texts(figure))
    alone = plot_fidelity({"one": {"t": (0.5, float("nan"))}})
    assert alone.legends[0].get_texts()[1].get_text() == "no intervals are known"
    assert [name.get_text() for name in ticks_of(plot_fidelity(scores))] == ["good", "bad", "other"]
    with pytest.raises(ValueError, match=r"plot_fidelity: families must hold each of the 3 methods .* once, got 2"):
        plot_fidelity(scores, families={"a": ["bad", "good"]})
    with pytest.raises(ValueError, match="plot_fidelity: families must hold"):
        plot_fidelity({})


def test_bad_input_is_named(batch: SyntheticBatch) -> None:
    inputs, credit = batch.inputs, get_credit("grpo")(batch.inputs)
    other = synthetic_batch(key_door(), groups=1, generator=torch.Generator().manual_seed(0)).inputs
    tokens = [["a"] * count for count in inputs.token_counts.tolist()]
    with pytest.raises(ValueError, match=r"plot_trajectory_credit: trajectory must lie in \[0, 12\), got 12"):
        plot_trajectory_credit(credit, inputs, 12)
    with pytest.raises(ValueError, match="plot_trajectory_credit: labels must have one entry per row"):
        plot_trajectory_credit(credit, inputs, 0, labels=["a"])
    with pytest.raises(ValueError, match="plot_group: group must be one of group_ids, got 9"):
        plot_group(credit, inputs, 9)
    with pytest.raises(ValueError, match=r"plot_group: credit\.advantages must have shape"):
        plot_group(credit, other, 0)
    with pytest.raises(ValueError, match="plot_methods: credits must hold at least one"):
        plot_methods({}, inputs, 0)
    with pytest.raises(ValueError, match="view_tokens: tokens must have one text per sampled token, got 1 for"):
        view_tokens(inputs, 0, [["a"]] * inputs.num_rows)
    with pytest.raises(ValueError, match="view_tokens: values must be None where credit is given"):
        view_tokens(inputs, 0, tokens, credit=credit, values=inputs.student_logprobs)
    with pytest.raises(ValueError, match=r"view_tokens: values must be \[M, T\]"):
        view_tokens(inputs, 0, tokens, values=torch.zeros(2, 2))


def test_the_notebook_runs(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, 4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 3
    assert "text/html" in kinds


def test_the_notebook_is_plain_json_without_machine_traces() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert json.loads(text)["nbformat"] == 4
    assert not re.search(r"/(home|root|tmp|work|Users)/|Warning", text)
