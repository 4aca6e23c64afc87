"""Tables and figures of the page *Performance*, from a record of the benchmark."""

import json
import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from IPython.display import display
from iterlin_study.records import records
from iterlin_study.report import intervals, plotting, tables

SHARED = (
    "layers of fewer than 16 channels copy patches, as with one thread; and two devices wait for "
    "each other at each step, and copy each other's part of the batch, which a short step feels."
)
# Why a goal is not reached, by what is compared.
REASONS = {
    "plain step, against torch, two threads": SHARED,
    "linearised step, against torch.func, two threads": SHARED,
    "linearised step, in plain steps": "it has {extra} times the operations, so that 1.4 needs a "
    "linearised step nearer to its floor than the plain one; what makes both faster takes the "
    "ratio to that number.",
    "plain step, against torch, transformer": "a step takes as long as JAX's own gradient: what is "
    "left is XLA against torch.",
    "gradient, against torch": "the program is JAX's own, and XLA takes longer for it than torch.",
    "GGN product, in gradients": "it is one pass with tangents and one backward; the ratio differs "
    "between rounds by more than it misses the goal.",
    "against torch.func": "a first training compiles its loop of steps, and torch compiles "
    "nothing; with JAX's cache it is faster than torch. A kernel takes its examples in slices that "
    "fit into a processor's cache, which pays for convolutions; the transformer's few examples "
    "would be faster all at once.",
    "against neural-tangents": "most of it is importing JAX, and neural-tangents runs on an older "
    "JAX, which is imported in less time.",
    "against laplace-torch": "the full posterior takes singular values, which keep small "
    "variances and give the posterior of any other prior at once, where laplace-torch inverts a "
    "matrix. The other structures are quick to compute, and each call traces the network anew.",
}


def show(head: list[str], rows) -> None:
    display(tables.table(head, rows))


def note(text: str) -> None:
    display(tables.said(text))


def time_text(seconds: float) -> str:
    """Write seconds with three digits and a unit, such as 12.3 ms."""
    for unit, size in (("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"


def texts(numbers, form: str) -> list[str]:
    """Write numbers in a format, NaN as a dash."""
    return ["–" if np.isnan(number) else format(number, form) for number in numbers]


def frame(record: xr.Dataset, axis: str, samples: str) -> pd.DataFrame:
    """Return the record's variables along an axis, its samples of all rounds, and their median."""
    values = record[samples].values
    others = record.drop_dims([name for name in record.dims if name != axis])
    columns = {name: variable.values for name, variable in others.variables.items()}
    return pd.DataFrame(columns | {"samples": list(values), "median": np.median(values, axis=1)})


class Report:
    """The parts of the page, each shown by a method.

    Args:
        record: `bench.record.dataset` with the attributes that `bench.__main__` adds.
    """

    def __init__(self, record: xr.Dataset):
        self.record = record
        self.rows = rows = frame(record, "contestant", "seconds")
        rows["time"] = rows["median"].map(time_text)
        rows["peak"] = texts(rows["peak_bytes"] / 2**20, ".0f")
        rows["growth"] = texts((rows["peak_bytes"] - rows["start_bytes"]) / 2**20, ".0f")
        self.curves = frame(record, "curve", "slope")
        self.compared = frame(record, "comparison", "ratio")
        above = self.compared["median"] >= self.compared["limit"]
        self.compared["met"] = above != self.compared["at_most"].astype(bool)

    def of(self, case: str) -> pd.DataFrame:
        """Return the contestants of a case by their labels."""
        found = self.rows[self.rows["case"] == case]
        return found.set_index("label", drop=False)

    def cases(self, word: str) -> list[str]:
        """Return the names of cases that contain a word; those of first calls only for "first"."""
        names = [name for name in self.rows["case"].unique() if word in name]
        return [name for name in names if name.startswith("first ") == (word == "first")]

    def show_origin(self) -> None:
        """Say which record it is, and on what machine it was made."""
        found = json.loads(self.record.attrs["conditions"])
        note(
            f"Shown: {records.caption(self.record)}; {found['cpu']}, {found['threads']} threads, "
            f"{found['rounds']} rounds; load before it began: {found['load']:g} (near 0 on a quiet "
            "machine)."
        )
        if found["load"] > 0.5:
            note(
                "The load was above 0.5 when this record began: other work may have disturbed it, "
                "and the ranges show by how much."
            )

    def show_ratios(self, names) -> None:
        """Show the comparisons in these cases."""
        body = []
        for row in self.compared.itertuples():
            if row.compared_in in names:
                spread = f"{row.median:.3g} [{row.samples.min():.3g}, {row.samples.max():.3g}]"
                goal = f"at {'most' if row.at_most else 'least'} {row.limit:g}"
                met = "yes" if row.met else "no"
                body.append([row.compared_in, row.compared, spread, goal, met])
        show(["case", "ratio", "median [smallest, largest]", "goal", "met"], body)

    def by_case(self) -> dict[str, pd.Series]:
        """Return the ratios of peers' times to ours, for each case."""
        peers = self.compared[self.compared["compared"].str.contains("against")]
        return dict(list(peers.groupby("compared_in", sort=False)["median"]))

    def show_summary(self) -> None:
        """Say in how many cases this library is the fastest, and where it is slower."""
        fastest = {case: ratios.min() for case, ratios in self.by_case().items()}
        slower = [f"{case} ({ratio:.2g})" for case, ratio in fastest.items() if ratio < 1]
        first = len(fastest) - len(slower)
        end = f"A peer is faster for: {'; '.join(slower)}." if slower else ""
        note(f"This library is faster than every peer in {first} of {len(fastest)} cases. {end}")

    def show_libraries(self) -> None:
        """Show how many times as long each library takes as this one for what both have."""
        rows = self.compared[self.compared["compared"].str.contains("against")]
        parts = rows["compared"].str.extract(r"(?:(.*), )?against ([^ ,]+)").fillna("")
        cases = rows["compared_in"] + parts[0].map(lambda what: f": {what}" if what else "")
        table = rows.assign(case=cases, library=parts[1]).pivot_table(
            values="median", index="case", columns="library", aggfunc="min", sort=False
        )
        table = table.sort_index(axis=1)
        body = [[case, *texts(times, ".3g")] for case, *times in table.itertuples()]
        show(["case", *table.columns], body)

    def draw_peers(self) -> None:
        """Draw, for each case, how many times as long the fastest peer takes; others as dots."""
        cases = list(self.by_case().items())[::-1]
        _, axis = plotting.panels(1, height=0.42 * len(cases) + 1.0)
        for place, (_, ratios) in enumerate(cases):
            axis.barh(place, ratios.min() - 1, left=1, color=plotting.COLOURS[0], alpha=0.35)
            axis.plot(ratios, [place] * len(ratios), ".", color=plotting.COLOURS[0])
        axis.axvline(1, color="k", lw=1)
        axis.set_yticks(range(len(cases)), [textwrap.fill(case, 25) for case, _ in cases])
        ticks = [0.1, 0.3, 1, 3, 10, 30]
        axis.set(xscale="log", xlabel="the peer's time over ours")
        axis.set_xticks(ticks, [f"{tick}" for tick in ticks])
        axis.minorticks_off()
        plt.show()

    def show_missed(self) -> None:
        """Show the goals that are not reached, and why."""
        missed = self.compared[~self.compared["met"]]
        operations = self.of("stepping")["operations"]
        extra = operations.get("linearised step", np.nan) / operations.get("plain step", np.nan)
        body = []
        for text, rows in missed.groupby("compared", sort=False):
            ratios = ", ".join(f"{r.median:.3g} ({r.compared_in})" for r in rows.itertuples())
            why = REASONS.get(text, "not understood yet.").format(extra=f"{extra:.2f}")
            body.append([text, ratios, why])
        if body:
            show(["not reached", "ratio", "why"], body)
        else:
            note("Every goal is reached.")

    def draw_steps(self) -> None:
        """Draw the milliseconds of each kind of step, with the floor of its operations.

        That is their time at the rate of the matrix product; torch's are taken to be ours.
        """
        rows = self.of("stepping")
        product = rows.reindex(["matrix product"]).iloc[0]
        rows["linear"] = rows["label"].str.contains("linear")
        ours = np.where(rows["linear"], "linearised step", "plain step")
        operations = rows["operations"].reindex(ours).to_numpy()
        rows["floor"] = operations * product["median"] / product["operations"]
        rows = rows.drop("matrix product", errors="ignore")
        rows = rows.sort_values(["linear", "median"], ascending=[True, False])
        _, axis = plotting.panels(1, height=0.42 * len(rows) + 1.2)
        for place, row in enumerate(rows.itertuples()):
            colour = plotting.COLOURS[0 if row.peer == "iterlin" else 1]
            axis.barh(place, 1e3 * row.median, color=colour, alpha=0.35)
            axis.plot(1e3 * row.samples, [place] * len(row.samples), ".", color=colour, ms=4)
            axis.plot([1e3 * row.floor] * 2, [place - 0.42, place + 0.42], color="k", lw=2)
        axis.set_yticks(range(len(rows)), rows["label"])
        axis.set(xlabel="milliseconds a step", xlim=(0, None))
        plt.show()

    def show_times(self, names, *, memory: bool = False) -> None:
        """Show the median times in these cases, and their memory if asked for."""
        columns = {"case": "case", "label": "library", "time": "median time"}
        if memory:
            columns |= {"peak": "peak (MiB)", "growth": "above a first sum (MiB)"}
        body = self.rows.loc[self.rows["case"].isin(names), list(columns)]
        show(list(columns.values()), body.to_numpy())

    def draw_growth(self) -> None:
        """Draw time against one size at a time."""
        _, axes = plotting.panels(1, 3, height=2.9, sharey=True)
        for axis, case in zip(axes, self.cases("growth"), strict=False):
            rows = self.of(case)
            sizes, middles = rows["size"].to_numpy(), rows["median"].to_numpy()
            axis.plot(sizes, np.stack(rows["samples"]), ".", color="0.6", ms=3)
            axis.plot(sizes, middles, color=plotting.COLOURS[0], marker="o", ms=4)
            axis.plot(sizes, middles[0] * sizes / sizes[0], color="k", ls=":", lw=1)
            axis.set(xscale="log", yscale="log", xlabel=rows["series"].iloc[0])
            axis.minorticks_off()
            axis.set_xticks(sizes, [f"{n:.0f}" if n < 1e4 else f"{n / 1e3:,.0f}k" for n in sizes])
        axes[0].set_ylabel("seconds")
        plt.show()

    def show_slopes(self) -> None:
        """Show the slopes of log time against log size."""
        body = []
        for row in self.curves.itertuples():
            found = intervals.mean_interval(row.samples)
            text = f"{found.estimate:.2f} [{found.lower:.2f}, {found.upper:.2f}]"
            body.append([row.curve_in, row.curve, text])
        show(["case", "against, or engine", "slope [95 %, over rounds]"], body)

    def show_conditions(self) -> None:
        """Show the peers' versions, and who was left out."""
        peers = json.loads(self.record.attrs["peers"]).items()
        body = [[peer, ", ".join(map(" ".join, found.items()))] for peer, found in peers]
        show(["peer", "versions"], body)
        if left_out := json.loads(self.record.attrs["left_out"]):
            show(["left out in", "contestant", "why"], left_out)
        else:
            note("Nobody was left out.")
