"""The paper's figures one by one: what each shows, the paper's numbers and ours, verdicts."""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from io import BytesIO
from unittest import mock

import matplotlib.pyplot as plt
from IPython.display import HTML, display
from iterlin_study.records import records
from iterlin_study.report import claims, claims_table
from matplotlib.transforms import Bbox

from book.experiments import (
    batching_helpers,
    damping_cnn_helpers,
    damping_quintic_helpers,
    data_scaling_helpers,
    few_updates_helpers,
    filters_helpers,
    full_solve_helpers,
    period_sweep_helpers,
    probes_helpers,
    resnet_helpers,
    workshop_helpers,
    xor_helpers,
)

DOTS = 72  # an inch of a thumbnail


@dataclass(frozen=True)
class Row:
    """A quantity of a figure: the paper's number and, from an experiment's record, ours."""

    what: str
    paper: str
    ours: str  # with statistics of the record in its slots
    experiment: str = ""  # of the figure, unless another is named


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    page: the one with our figure; draw: of the record that has the page's name; of: of another.
    """

    name: str
    shows: str
    page: str
    claims: tuple[str, ...]
    rows: tuple[Row, ...]
    draw: Callable | None = None
    of: str = ""

    @property
    def experiment(self) -> str:
        return self.of or self.page.rpartition("/")[2]


FIGURES = (
    Figure(
        "Figure 1",
        "A sketch of the regimes along the period K: gradient descent, iterative linearisation, "
        "truncated Gauss-Newton, linearised training.",
        "algorithm/regimes",
        ("C12",),
        (
            Row("distance to gradient descent, K = 10", "–", "{small_period_distance:.0%}"),
            Row("distance to Gauss-Newton, K = 10⁸", "–", "zero to rounding"),
        ),
    ),
    Figure(
        "Figure 2",
        "Test accuracy during training on augmented CIFAR-10, with SGD and with a few updates.",
        "experiments/few_updates",
        ("C1", "C1-width", "C1-number", "C1-augmented"),
        (
            Row("SGD, K = 1 (%)", "82.3", "{first_level}"),
            Row("below SGD, K = 5·10⁶ (points)", "0.9", "{gap_end}"),
            Row("the same at equal training loss", "–", "{gap_matched}"),
            Row("the same, trained until it fits 1,000 images", "–", "{few_gap_end}", "converged"),
            Row("updates until it fits", "8 to 12", "{few_taken:.0f} on 1,000 images", "converged"),
            Row("the same, the paper's network", "–", "{few_gap}", "width"),
            Row("updates until it fits", "8 to 12", "{few_taken:.0f} on 1,000 images", "width"),
        ),
        few_updates_helpers.draw,
    ),
    Figure(
        "Figure 3",
        "Test accuracy for periods K from 1 to 10⁸, and for truncated Gauss-Newton.",
        "experiments/period_sweep",
        ("C2", "C2-middle", "C3", "C2-width", "C3-newton"),
        (
            Row("K = 1 minus K up to 10⁴ (points)", "same", "{largest_gap_oracle}"),
            Row("above SGD, middle K (points)", "slightly", "{middle_rise_best}", "converged"),
            Row("SGD minus K = 10⁸ (points)", "about 9", "{long_gap_end}", "converged"),
            Row("the same, the paper's network", "about 9", "{long_gap}", "width"),
        ),
        period_sweep_helpers.draw,
    ),
    Figure(
        "Figure 4",
        "Test accuracy against the number of training images, for finite K and for K = ∞.",
        "experiments/data_scaling",
        ("C4", "C4-steps", "C4-step-size"),
        (
            Row(
                "K = ∞ minus K = 1, per ten times the data",
                "worse",
                "{lazy_slope}",
                "converged",
            ),
            Row("few updates minus K = 1, the same", "parallel", "{few_slope}", "converged"),
        ),
        data_scaling_helpers.draw,
    ),
    Figure(
        "Figure 5",
        "Test accuracy of linear probes of both convolutions' features during training.",
        "experiments/probes",
        ("C5-probes", "C5-match"),
        (
            Row("K = 1 minus large K, layer 1 (points)", "large K lower", "{final_gap_conv1}"),
            Row("K = 1 minus large K, layer 2 (points)", "large K lower", "{final_gap_conv2}"),
        ),
        probes_helpers.draw,
    ),
    Figure(
        "Figure 6",
        "How three filters of the first convolution change during training.",
        "experiments/probes",
        ("C5-filters", "C5-conjecture"),
        (
            Row(
                "share of K = 1's training in which its filters move as far as with large K",
                "20 %",
                "{fraction_reached:.0%}",
            ),
            Row("distance moved, large K over K = 1, equal steps", "–", "{change_ratio}"),
            Row("the same, trained until both fit", "–", "{few_moved}", "converged"),
        ),
        filters_helpers.draw,
        "filters",
    ),
    Figure(
        "Figure 7",
        "The features of a small network on XOR, and their alignment with the data, for several "
        "K and several dampings.",
        "experiments/xor",
        ("C5-XOR", "C5-XOR-error", "C8"),
        (
            Row("alignment lost to large K", "in a figure", "{alignment_drop_period_small}"),
            Row("alignment lost to low damping", "in a figure", "{alignment_drop_damping_small}"),
        ),
        xor_helpers.draw_collapse,
    ),
    Figure(
        "Figure 8",
        "Test accuracy where each linear problem is solved completely, by Adam.",
        "experiments/exact_solves",
        ("C6", "C6-exact", "C6-same"),
        (
            Row("below SGD (points)", "9.1; SGD 69.4 %", "{gap_sgd_fixed_oracle}; SGD 35 %"),
            Row("exact minima", "–", "{cost_accuracy}; SGD {sgd_level:.0f} %", "exact_solves"),
        ),
        full_solve_helpers.draw,
        "full_solve",
    ),
    Figure(
        "Figure 9, top and middle",
        "Test errors and functions of networks fitted to a quintic by damped Gauss-Newton.",
        "experiments/damping_quintic",
        ("C7-mean", "C7-worst", "C7-best", "C7-smooth", "C8-error"),
        (
            Row("mean error, damping 10⁻³ over 1, log10", "in a figure", "{mean_ratio_zero}"),
            Row("worst 5 %, the same", "in a figure", "{worst_ratio_zero}"),
            Row("best 5 %, the same", "unchanged", "{best_ratio_zero}"),
        ),
        damping_quintic_helpers.draw,
    ),
    Figure(
        "Figure 9, bottom",
        "Test accuracy of the network on CIFAR-10 against damping.",
        "experiments/damping_cnn",
        ("C7-CNN", "C7-exact", "C8-CNN"),
        (
            Row("gained by damping (points)", "in a figure", "{gain_oracle}"),
            Row("the same, exact minima", "–", "{gain_accuracy}", "exact_solves"),
        ),
        damping_cnn_helpers.draw,
    ),
    Figure(
        "Figure 10",
        "Test accuracy of ResNet18, with and without batch normalisation.",
        "experiments/resnet",
        ("C9", "C9-normalised"),
        (
            Row(
                "best accuracy, K = 1 minus large K (points)",
                "similar",
                "{gap_plain}; all runs of large K fail later",
            ),
            Row("the same, normalised", "similar", "{gap_batch}, not fitted"),
        ),
        resnet_helpers.draw,
    ),
    Figure(
        "Figure 11",
        "Full batch beside minibatch, after K and the step size are rescaled together.",
        "experiments/batching",
        ("C10", "C10-moderate", "C10-large"),
        (
            Row("full minus minibatch, K = 1", "curves coincide", "{difference_end_standard}"),
            Row("the same, large K", "curves coincide", "{difference_end_large}"),
        ),
        batching_helpers.draw,
    ),
    Figure(
        "Workshop 2022, Figures 1 and 2",
        "Test accuracy on MNIST and CIFAR-10 for K up to 20,000 at two step sizes.",
        "experiments/workshop",
        ("v1-MNIST", "v1-plateau", "C11", "v1-any"),
        (
            Row("MNIST, spread of finite K (points)", "0.4", "{mnist_spread}, not fitted"),
            Row("runs that fail, larger step, K > 5", "all", "{larger_beyond_share:.0%}"),
            Row("runs that fail, smaller step", "none", "{smaller_beyond_share:.0%}"),
        ),
        workshop_helpers.draw,
    ),
)


def show(name: str) -> None:
    """Display a figure of the paper, if there is a record of ours."""
    figure = next(figure for figure in FIGURES if figure.name == name)
    if records.best(figure.experiment) is not None:
        display(HTML(f"{claims_table.STYLE}{_shown(figure)}"))


def _shown(figure: Figure) -> str:
    link = f"{escape(figure.page)}.html"
    picture = ""
    if figure.draw:
        alt = escape(f"Our figure for the paper's {figure.name}: {figure.shows}", quote=True)
        picture = f'<a href="{link}"><img alt="{alt}" src="{_thumbnail(figure)}"></a>'
    judged = "".join(
        f"<li>{claims_table.badge(verdict.verdict)} {escape(verdict.row['claim'])}</li>"
        for verdict in (claims.judge(_ledger()[name]) for name in figure.claims)
    )
    rows = "".join(_row(row, row.experiment or figure.experiment) for row in figure.rows)
    return (
        f'<div class="paper-figure"><div><p>{escape(figure.shows)} '
        f'<a href="{link}">Our page</a>.</p>{picture}</div>'
        '<div><table><thead><tr><td></td><th scope="col">the paper</th><th scope="col">ours</th>'
        f"</tr></thead><tbody>{rows}</tbody></table><ul>{judged}</ul></div></div>"
    )


@cache
def _ledger() -> dict[str, dict]:
    """Return the ledger's rows by id. Each figure of the page needs them: they are read once."""
    return {row["id"]: row for row in claims.load_claims()}


def _row(row: Row, experiment: str) -> str:
    record = records.best(experiment)
    ours = claims.filled(row.ours, record) if record else "no record"
    cells = "".join(f"<td>{escape(text)}</td>" for text in (row.paper, ours))
    return f"<tr><th scope='row'>{escape(row.what)}</th>{cells}</tr>"


def _thumbnail(figure: Figure) -> str:
    """Return the top panel of our figure as an address that holds it."""
    with mock.patch.object(plt, "show"):
        figure.draw(records.best(figure.experiment))
    drawn, saved = plt.gcf(), BytesIO()
    drawn.canvas.draw()
    width, height = drawn.get_size_inches()
    bottom = drawn.axes[0].get_tightbbox().y0 / drawn.dpi
    top = Bbox([[0, max(0, bottom - 0.05)], [width, height]])
    drawn.savefig(saved, format="png", dpi=DOTS, bbox_inches=top, metadata={"Software": None})
    plt.close("all")
    return f"data:image/png;base64,{b64encode(saved.getvalue()).decode()}"
