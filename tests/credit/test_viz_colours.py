"""Colours say the sign and the size of the credit; without any a sentence says so; nothing is cut off."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from turncredit.credit import Credit, CreditInputs
from turncredit.credit.lab.viz import plot_curves, plot_group, plot_methods, plot_trajectory_credit, view_tokens
from turncredit.credit.lab.viz.curves import band

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch, Rectangle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, WHITE, ORANGE = "#0072b2", "#f7f7f7", "#d55e00"
CREDIT = torch.tensor([1.84, 2.3, 2.16, -2.3, -0.46, 0.0])
"""Of three turns of a trajectory that is praised, and of three of one that is blamed; means +2.1 and -0.92."""


def batch(rewards: tuple[float, ...] = (1.0, 0.0), groups: tuple[int, ...] = (0, 0)) -> CreditInputs:
    mask = torch.ones(6, 2, dtype=torch.bool)
    return CreditInputs(
        response_mask=mask, trajectory_ids=torch.tensor([0, 0, 0, 1, 1, 1]), turn_ids=torch.tensor([0, 1, 2] * 2),
        group_ids=torch.tensor(groups), rewards=torch.tensor(rewards), successes=torch.tensor(rewards),
        student_logprobs=torch.full((6, 2), -1.0),
    )  # fmt: skip


def credit(values: torch.Tensor = CREDIT) -> Credit:
    return Credit(values[:, None].expand(6, 2).clone(), torch.tensor([0.9, 1.1, 1.0] * 2))


def mixed(colour: str, share: float) -> list[float]:
    return [share * own + (1 - share) * white for own, white in zip(to_rgb(colour), to_rgb(WHITE), strict=True)]


def test_a_turn_of_a_group_has_the_colour_of_its_sign_and_size() -> None:
    figure = plot_group(credit(), batch(), 0)
    boxes = [box.get_facecolor()[:3] for box in figure.axes[0].findobj(FancyBboxPatch)]
    # largest size 2.3: +1.84 is 0.8 of blue though it lies below its trajectory's mean, -0.46 is 0.2 of orange
    for box, (colour, share) in zip(
        boxes, [(BLUE, 0.8), (BLUE, 1.0), (BLUE, 2.16 / 2.3), (ORANGE, 1.0), (ORANGE, 0.2), (BLUE, 0.0)], strict=True
    ):
        assert box == pytest.approx(mixed(colour, share), abs=0.006)
    assert to_hex(boxes[1]) == BLUE
    assert to_hex(boxes[5]) == WHITE
    numbers = [text.get_text() for text in figure.axes[0].texts]
    assert numbers == ["+1.84", "+2.30", "+2.16", "-2.30", "-0.46", "0.00"]
    scale = figure.axes[1]
    assert scale.get_ylim() == pytest.approx((-2.3, 2.3))
    assert "credit of the turn" in scale.get_ylabel()


def test_the_bar_in_a_turn_is_its_offset_from_the_trajectorys_mean() -> None:
    figure = plot_group(credit(), batch(), 0)
    bars = [box.get_width() for box in figure.axes[0].findobj(Rectangle) if box.get_height() == pytest.approx(0.07)]
    offsets = [-0.26, 0.2, 0.06, -1.38, 0.46, 0.92]  # the longest, -1.38, reaches 0.38 of a cell
    assert bars == pytest.approx([0.38 * offset / 1.38 for offset in offsets], abs=1e-6)
    flat = plot_group(credit(torch.full((6,), 2.0)), batch(), 0)
    assert not [box for box in flat.axes[0].findobj(Rectangle) if box.get_height() == pytest.approx(0.07)]


def test_the_table_has_a_scale_for_each_row_or_one_for_all() -> None:
    results = {"a": credit(), "b": credit(-0.5 * CREDIT)}
    exact = 0.1 * CREDIT.double()
    own = plot_methods(results, batch(), 1, exact_advantages=exact)
    shared = plot_methods(results, batch(), 1, exact_advantages=exact, scale="shared")
    image = own.axes[0].images[0]
    assert image.get_clim() == (-1.0, 1.0)
    row = [-1.0, -0.2, 0.0]
    assert image.get_array().ravel().tolist() == pytest.approx([*row, *row, *(-x for x in row)], abs=1e-6)
    assert [text.get_text() for text in own.axes[1].get_yticklabels()] == [
        "the row's\nmost blame", "0", "the row's\nmost praise",
    ]  # fmt: skip
    image = shared.axes[0].images[0]
    assert image.get_clim() == pytest.approx((-2.3, 2.3))
    values = [-0.23, -0.046, 0.0, -2.3, -0.46, 0.0, 1.15, 0.23, 0.0]
    assert image.get_array().ravel().tolist() == pytest.approx(values, abs=1e-6)
    assert [text.get_text() for text in shared.axes[0].texts[3:6]] == ["-2.30", "-0.46", "0.00"]
    assert "number: credit itself, one scale for all rows" in shared.get_suptitle().replace("\n", " ")
    with pytest.raises(ValueError, match="plot_methods: scale must be one of 'row', 'shared', got 'log'"):
        plot_methods(results, batch(), 1, scale="log")  # type: ignore[arg-type]


@pytest.mark.parametrize(("trajectory", "colour", "hatch"), [(0, BLUE, None), (1, ORANGE, "////")])
def test_weights_of_a_trajectory_have_the_colour_of_its_credit(trajectory: int, colour: str, hatch: str | None) -> None:
    figure = plot_trajectory_credit(credit(), batch(), trajectory)
    bars = figure.axes[0].patches
    assert [to_hex(bar.get_facecolor()) for bar in bars[:2]] == [colour] * 2
    assert bars[0].get_hatch() == hatch
    assert [bar.get_height() for bar in bars] == pytest.approx([-0.1, 0.1, 0.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["above 0: praise", "below 0: blame"]


SAID = [
    (batch((1.0, 1.0)), "all 2 returns of the group are 1."),
    (batch((1.0, 0.0)), "the method gives none, though the returns of the group go from 0 to 1."),
    (batch((1.0, 0.0), (0, 1)), "its group has one trajectory, so there is nothing to compare with."),
]


@pytest.mark.parametrize(("inputs", "why"), SAID)
def test_a_sentence_says_why_nothing_has_an_advantage(inputs: CreditInputs, why: str) -> None:
    none = credit(torch.zeros(6))
    figures = plot_group(none, inputs, 0), plot_trajectory_credit(none, inputs, 0), plot_methods({"a": none}, inputs, 0)
    for figure, what in zip(figures, ("this group", "this trajectory", "this trajectory"), strict=True):
        said = figure.get_suptitle().replace("\n", " ")
        assert f"No turn of {what} has an advantage: {why}" in said
        assert len(figure.axes) == 1, "no scale of nothing"
    tokens = [["<b>", "x"]] * 6
    html = view_tokens(inputs, 0, tokens, credit=none).html
    assert f"No turn of this trajectory has an advantage: {why}" in html
    assert 'class="less"' not in html
    assert "No turn" not in plot_group(credit(), inputs, 0).get_suptitle()


def test_what_is_said_is_of_the_turns_that_are_drawn() -> None:
    values = torch.tensor([0.0, 0.0, 0.0, -1.0, 0.0, 0.0])
    assert "No turn of this trajectory" in plot_trajectory_credit(credit(values), batch(), 0).get_suptitle()
    assert "No turn" not in plot_trajectory_credit(credit(values), batch(), 1).get_suptitle()
    table = plot_methods({"zero": credit(torch.zeros(6)), "some": credit(values)}, batch(), 1)
    assert "No turn" not in table.get_suptitle()
    assert plot_group(credit(values), batch(), 0).axes[1].get_ylim() == (-1.0, 1.0)
    with pytest.raises(ValueError, match="plot_group: max_trajectories must be at least 1, got 0"):
        plot_group(credit(), batch(), 0, max_trajectories=0)


def test_tokens_of_no_value_have_a_sentence_and_bad_ones_an_error() -> None:
    tokens = [["<b>", "x"]] * 6
    view = view_tokens(batch(), 0, tokens, values=torch.zeros(6, 2))
    assert "Every value of this trajectory is 0." in view.html
    assert "&lt;b&gt;" in view.html
    with pytest.raises(ValueError, match="view_tokens: values must be finite where a token was sampled"):
        view_tokens(batch(), 0, tokens, values=torch.full((6, 2), float("nan")))
    masked = replace(batch(), response_mask=torch.tensor([[True, False]] * 6))
    hidden = torch.tensor([[1.0, float("nan")]] * 6)
    assert 'title="+1.0000"' in view_tokens(masked, 0, [["x"]] * 6, values=hidden).html


def test_a_credits_table_counts_praised_and_blamed_turns() -> None:
    assert "3 praised (credit above 0), 2 blamed (below 0), 1 with none" in credit()._repr_html_()


def beyond(figure: Figure) -> float:
    """Inches by which what is drawn reaches over the figure's edge."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = figure.get_tightbbox(canvas.get_renderer())
    return max(-drawn.x0, -drawn.y0, drawn.x1 - figure.get_figwidth(), drawn.y1 - figure.get_figheight())


def test_nothing_is_cut_off() -> None:
    labels = ["open the second drawer of the desk"] * 6
    title = "A rather long title that somebody gave to a picture of two short trajectories of one task"
    results = {"a_method_with_quite_a_long_name_for_a_row": credit(), "grpo": credit()}
    inputs, options = batch(), {"labels": labels, "title": title}
    for figure in (
        plot_group(credit(), inputs, 0, **options),
        plot_trajectory_credit(credit(), inputs, 1, **options),
        plot_methods(results, inputs, 1, **options, exact_advantages=CREDIT),
        plot_methods(results, inputs, 1, **options, scale="shared"),
        plot_curves({"a": [[(0, 1.0), (1, 2.0)]]}, xlabel="updates", ylabel="x", title=title, reading=title),
    ):
        assert beyond(figure) < 0.02, figure.get_suptitle()


def test_curves_have_the_mean_and_interval_of_their_seeds() -> None:
    runs = [[(1, 0.2), (2, 0.4), (3, 0.5)], [(1, 0.3), (2, 0.5)], [(1, 0.1), (2, 0.3), (4, 0.9)]]
    figure = plot_curves({"three": runs, "one": [runs[0]]}, xlabel="updates", ylabel="success")
    axes = figure.axes[0]
    thick = [line for line in axes.lines if line.get_linewidth() == 2]
    assert [line.get_label() for line in thick] == ["three (3 seeds)", "one (1 run, no band)"]
    # where all three have been: means 0.2 and 0.4, s = 0.1, t = 4.3027, half-width 4.3027 * 0.1 / sqrt 3 = 0.2484
    assert thick[0].get_xydata().ravel().tolist() == pytest.approx([1, 0.2, 2, 0.4])
    assert thick[1].get_xydata().tolist() == [[1, 0.2], [2, 0.4], [3, 0.5]]
    [shape] = axes.collections
    corners = {(round(x), round(y, 3)) for x, y in shape.get_paths()[0].vertices.tolist()}
    assert corners == {(1, -0.048), (1, 0.448), (2, 0.152), (2, 0.648)}
    thin = [line.get_xydata().tolist() for line in axes.lines if line.get_linewidth() < 1]
    assert thin == [[list(point) for point in run] for run in runs]
    assert thick[0].get_linestyle() != thick[1].get_linestyle(), "told apart in grey"
    assert axes.get_ylim()[0] == -0.02, "no share is below 0"
    assert "bands are cut at the frame" in figure.get_suptitle().replace("\n", " ")


def test_a_band_joins_runs_with_points_of_their_own() -> None:
    xs, means, halves = band([[(0, 0.0), (2, 1.0), (3, 1.0)], [(1, 0.5), (2, 2.0)]])
    assert xs == [1, 2]
    assert means == pytest.approx([0.5, 1.5])
    assert halves == pytest.approx([0.0, 12.706 * 0.5], abs=1e-3)  # s = 0.7071, t = 12.706, over sqrt 2


def test_curves_that_cannot_be_drawn_are_named() -> None:
    with pytest.raises(ValueError, match="plot_curves: curves must have 1 to 8 labels, got 0"):
        plot_curves({}, xlabel="", ylabel="")
    with pytest.raises(ValueError, match=r"must have a run for each label, got none for \['a'\]"):
        plot_curves({"a": []}, xlabel="", ylabel="")
    with pytest.raises(ValueError, match="must have finite points in each run, got none in one of 'a'"):
        plot_curves({"a": [[(0, float("nan"))]]}, xlabel="", ylabel="")
    with pytest.raises(ValueError, match="runs of 'a' must meet, got one that ends at x = 1 and one that begins at 5"):
        plot_curves({"a": [[(0, 1.0), (1, 2.0)], [(5, 1.0)]]}, xlabel="", ylabel="")
