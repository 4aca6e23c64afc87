"""What a record of the benchmark says: the tables and figures of the page *Performance*."""

import collections
import json

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from IPython.display import display
from iterlin.study import intervals, plotting, records, tables

# What the times of a growth curve are of, by case.
MEANING = {
    "growth with N": "one step of LeNet",
    "growth with P": "one step of an MLP with two hidden layers, batch 256",
    "growth with K": "512 steps of one run, evaluation included",
    "growth with seeds": "50 steps of that many runs as one program",
    "exact": "one linearisation of K steps",
    "exact, 100,000 outputs": "the same",
    "growth with LeNets, plain": "200 steps of that many LeNets as one program",
    "growth with LeNets, linearised": "the same, linearised every 50 steps",
    "sweeps": "16 runs, against the hidden width",
}
SHARED = (
    "layers of fewer than 16 channels copy patches, as with one thread; and two devices wait for "
    "each other at each step, and copy each other's part of the batch, which a short step feels."
)
COPIES = (
    "layers of fewer than 16 channels, the first one always, copy patches or blocks of them; "
    "torch's convolution does not."
)
# Why a goal is not reached, by what is compared.
REASONS = {
    "plain step, against torch": "the derivative by a kernel multiplies by the transposed patches, "
    "which XLA does more slowly than the other products on a CPU, and the activations of all "
    "slices are written out before the backward pass.",
    "linearised step, against torch.func": "as for the plain step: the transposed product, and "
    "activations that leave the cache.",
    "plain step, against torch, one thread": COPIES,
    "linearised step, against torch.func, one thread": COPIES,
    "plain step, against torch, two threads": SHARED,
    "linearised step, against torch.func, two threads": SHARED,
    "linearised step, in plain steps": "it has {extra} times the operations, so that 1.4 needs a "
    "linearised step nearer to its floor than the plain one; what makes both faster takes the "
    "ratio to that number.",
    "linearised step, share of the floor": "the rest is copies of patches, masks of ReLU and of "
    "pooling, and products with 50 columns, which run slower than the square one that sets the "
    "rate.",
    "against neural-tangents (3)": "it uses the structure of the layers as well, and contracts in "
    "another order.",
}


def note(text: str) -> None:
    """Display a sentence."""
    display(tables.said(text))


def show_table(head: list[str], body: list[list]) -> None:
    display(tables.table(head, body))


def median(row: xr.Dataset) -> float:
    return float(row.seconds.median())


def time_text(seconds: float) -> str:
    """'12.3 ms': three digits and a unit."""
    for unit, size in (("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"


def is_met(samples: np.ndarray, limit: float, most: bool) -> bool:
    middle = np.median(samples)
    return middle <= limit if most else middle >= limit


class Report:
    """The parts of the page, each displayed by a method; without a record they say so or nothing.

    record: as `bench.record.dataset` makes it, with the attributes that the driver adds.
    """

    def __init__(self, record: xr.Dataset | None):
        self.record = record

    def attribute(self, name: str):
        """Of the record's attributes, one that holds JSON."""
        return {} if self.record is None else json.loads(self.record.attrs.get(name, "{}"))

    def rows(self, case: str, **wanted: str) -> list[xr.Dataset]:
        """The contestants of a case that have these texts, as small data sets."""
        if self.record is None or "label" not in self.record:
            return []
        count = self.record.sizes["contestant"]
        found = [self.record.isel(contestant=i) for i in range(count)]
        wanted = {"case": case, **wanted}
        return [row for row in found if all(str(row[k].item()) == v for k, v in wanted.items())]

    def called(self, case: str, label: str) -> xr.Dataset | None:
        return next(iter(self.rows(case, label=label)), None)

    def cases(self, word: str) -> list[str]:
        """Names of the cases that contain a word, in the order of the record."""
        if self.record is None or "case" not in self.record:
            return []
        names = self.record.case.values.tolist()
        return list(dict.fromkeys(name for name in names if word in name))

    def ratios(self, names=None) -> list[tuple]:
        """(case, text, samples, limit, at most) of the comparisons in these cases."""
        if self.record is None or "ratio" not in self.record:
            return []
        found = []
        for i in range(self.record.sizes["comparison"]):
            at = self.record.isel(comparison=i)
            case, limit, most = at.compared_in.item(), float(at.limit), bool(at.at_most)
            if names is None or case in names:
                found.append((case, at.compared.item(), at.ratio.values, limit, most))
        return found

    def show_origin(self) -> None:
        """Which record it is, and on what machine it was made."""
        if self.record is None:
            note("There is no record yet. make bench makes one, in a quarter of an hour.")
            return
        found = self.attribute("conditions")
        note(
            f"Shown: {records.caption(self.record)}; {found['cpu']}, "
            f"{found['threads']} threads, {found['rounds']} rounds; load before it began: "
            f"{found['load']:g} (near 0 on a quiet machine)."
        )
        if found["load"] > 0.5:
            note(
                "This record was made on a machine that others used at the same time. Its "
                "seconds are too long and its ratios noisy; the ranges show by how much."
            )

    def show_ratios(self, names=None, *, goals_only: bool = False) -> None:
        """The comparisons in these cases, in all without any."""
        head, body = ["case", "ratio", "median [smallest, largest]", "goal", "met"], []
        for case, text, samples, limit, most in self.ratios(names):
            goal = met = "–"
            if np.isfinite(limit):
                goal = f"{'at most' if most else 'at least'} {limit:g}"
                met = "yes" if is_met(samples, limit, most) else "no"
            elif goals_only:
                continue
            spread = f"{np.median(samples):.3g} [{samples.min():.3g}, {samples.max():.3g}]"
            body.append([case, text, spread, goal, met])
        if body:
            show_table(head, body)
        else:
            note("Not measured yet: make bench.")

    def show_missed(self) -> None:
        """The goals that are not reached, and why."""
        missed = [
            (case, text, samples)
            for case, text, samples, limit, most in self.ratios()
            if np.isfinite(limit) and not is_met(samples, limit, most)
        ]
        steps = [self.called("stepping", f"{kind} step") for kind in ("linearised", "plain")]
        extra = "–"
        if all(step is not None for step in steps):
            extra = f"{float(steps[0].operations / steps[1].operations):.2f}"
        body = []
        for text in dict.fromkeys(text for _, text, _ in missed):
            values = ", ".join(f"{np.median(s):.3g} ({c})" for c, t, s in missed if t == text)
            why = REASONS.get(text, "not understood yet.").format(extra=extra)
            body.append([text, values, why])
        if body:
            show_table(["not reached", "median", "why"], body)
        elif self.ratios():
            note("Every goal is reached.")

    def draw_steps(self) -> None:
        """Milliseconds of each kind of step, with the floor of its operations."""
        members = [r for r in self.rows("stepping") if r.label.item() != "matrix product"]
        product = self.called("stepping", "matrix product")
        if not members:
            return
        _, axis = plotting.panels(1, height=0.42 * len(members) + 1.2)
        members = sorted(members, key=lambda row: (("linear" in row.label.item()), -median(row)))
        plain, linear = (
            self.called("stepping", f"{kind} step") for kind in ("plain", "linearised")
        )
        for place, row in enumerate(members):
            label = row.label.item()
            colour = plotting.COLOURS[0 if row.peer.item() == "iterlin" else 1]
            axis.barh(place, 1e3 * median(row), color=colour, alpha=0.35)
            axis.plot(
                1e3 * row.seconds, np.full(row.sizes["round"], place), ".", color=colour, ms=4
            )
            same = plain if "plain" in label else linear
            # Of kept activations the primal pass is left out: its own operations are not counted.
            if product is not None and same is not None and "kept" not in label:
                floor = float(same.operations) * median(product) / float(product.operations)
                axis.plot([1e3 * floor] * 2, [place - 0.42, place + 0.42], color="k", lw=2)
        axis.set_yticks(range(len(members)), [row.label.item() for row in members])
        axis.set(xlabel="milliseconds a step", xlim=(0, None))
        plt.show()

    def show_floors(self) -> None:
        """What the operations of a step would take at the rate of a large matrix product."""
        product = self.called("stepping", "matrix product")
        if product is None:
            return
        rate = float(product.operations) / median(product) / 1e9
        body = []
        for kind in ("plain", "linearised"):
            row = self.called("stepping", f"{kind} step")
            if row is not None:
                billions = float(row.operations) / 1e9
                floor = billions / rate
                share = f"{100 * floor / median(row):.0f} %"
                times = [time_text(floor), time_text(median(row))]
                body.append([row.label.item(), f"{billions:.2f}", *times, share])
        note(f"Rate of a 2048 × 2048 matrix product: {rate:.0f} billion operations a second.")
        show_table(["", "billion operations", "floor", "measured", "of the floor's rate"], body)

    def show_memory(self, word: str) -> None:
        """Time and memory of the cases whose names contain a word, and who needs less."""
        body = []
        for case in self.cases(word):
            for row in self.rows(case):
                grown = float(row.peak_bytes - row.start_bytes) / 2**20
                sizes = [f"{float(row.peak_bytes) / 2**20:.0f}", f"{grown:.0f}"]
                body.append([case, row.label.item(), time_text(median(row)), *sizes])
        if body:
            note(
                "Time, and memory of a process that did nothing else and compiled all that it ran; "
                "its growth counts from a first sum of two numbers, for which one library loads "
                "what another loads at its import:"
            )
            head = ["case", "library", "median time", "peak (MiB)", "above a first sum (MiB)"]
            show_table(head, body)
        grown = collections.defaultdict(dict)
        for case, label, *_, above in body:
            grown[case][label] = float(above)
        for case, found in grown.items():
            ours, best = found.get("iterlin", 0), min(found.values())
            if ours > best:
                why = "The reason is not understood yet."
                if "MLP" in case:
                    why = "The kernel is small there: most of it is what compiling takes."
                note(
                    f"More memory than the best of them: {case}, {ours:.0f} against "
                    f"{best:.0f} MiB. {why}"
                )

    def draw_periods(self) -> None:
        """Seconds and products of one linearisation against the period, for each engine."""
        series = list(dict.fromkeys(row.series.item() for row in self.rows("exact")))
        if not series:
            return
        fig, (top, bottom) = plotting.panels(2, sharex=True)
        for colour, marker, name in zip(plotting.COLOURS, "osD^v", series, strict=False):
            line = self.rows("exact", series=name)
            sizes = [float(row["size"]) for row in line]
            style = {"color": colour, "marker": marker, "ms": 5, "label": name}
            top.plot(sizes, [median(row) for row in line], **style)
            bottom.plot(sizes, [float(row.products) for row in line], **style)
        top.set(xscale="log", yscale="log", ylabel="seconds")
        bottom.set(xscale="log", yscale="log", xlabel="period $K$ (steps)", ylabel="products")
        handles, labels = bottom.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside upper center", ncols=2)
        plt.show()

    def show_break_even(self) -> None:
        """The width from which runs one after another are faster than one program for all."""
        apart, together = (
            self.rows("sweeps", series=name) for name in ("one after another", "one program")
        )
        widths = [float(row["size"]) for row in together]
        if not widths or widths != [float(row["size"]) for row in apart]:
            return
        pairs = zip(apart, together, strict=True)
        gains = np.array([np.median(a.seconds.values / t.seconds.values) for a, t in pairs])
        crossing = np.flatnonzero((gains[:-1] >= 1) & (gains[1:] < 1))
        if crossing.size:
            two = slice(crossing[0], crossing[0] + 2)
            width = np.exp(np.interp(0, -np.log(gains[two]), np.log(widths[two])))
            note(
                f"Break-even at about {width:.0f} hidden units: above, one after another is faster."
            )
        elif (gains >= 1).all():
            note("One program is faster at every size measured.")
        elif (gains < 1).all():
            note("One after another is faster at every size measured.")
        else:
            note(
                "Which is faster does not follow the size here: the differences are within the "
                "noise."
            )

    def show_iterations(self, case: str) -> None:
        """Time in all and for one iteration."""
        body = []
        for row in self.rows(case):
            count, whole = float(row.iterations), median(row)
            texts = [time_text(whole), f"{count:.0f}", time_text(whole / count)]
            body.append([row.label.item(), *texts])
        if body:
            show_table(["", "median time", "iterations in all", "time of one"], body)

    def draw_growth(self) -> None:
        """Time against one size at a time."""
        names = self.cases("growth")
        if not names:
            return
        _, axes = plotting.panels(-(-len(names) // 2), 2, height=2.9, sharey=True, squeeze=False)
        for axis in axes.ravel()[len(names) :]:
            axis.set_axis_off()
        for axis, case in zip(axes.ravel(), names, strict=False):
            line = self.rows(case)
            sizes = np.array([float(row["size"]) for row in line])
            middles = np.array([median(row) for row in line])
            for size, row in zip(sizes, line, strict=True):
                axis.plot(np.full(row.sizes["round"], size), row.seconds, ".", color="0.6", ms=3)
            axis.plot(sizes, middles, color=plotting.COLOURS[0], marker="o", ms=4)
            axis.plot(sizes, middles[0] * sizes / sizes[0], color="k", ls=":", lw=1)
            axis.set(xscale="log", yscale="log", xlabel=line[0].series.item())
            axis.minorticks_off()
            shortest = [f"{size:.0f}" if size < 1e4 else f"{size:.0e}" for size in sizes]
            axis.set_xticks(sizes, shortest)
        for axis in axes[:, 0]:
            axis.set_ylabel("seconds")
        plt.show()

    def show_slopes(self) -> None:
        """Slopes of log time against log size."""
        body = []
        for i in range(0 if self.record is None else self.record.sizes.get("curve", 0)):
            at = self.record.isel(curve=i)
            found = intervals.mean_interval(at.slope.values)
            text = f"{found.estimate:.2f} [{found.lower:.2f}, {found.upper:.2f}]"
            case = at.curve_in.item()
            body.append([MEANING.get(case, case), at.curve.item(), text])
        head = ["time of", "against, or engine", "slope [95 %, over rounds]"]
        if body:
            show_table(head, body)

    def show_all(self) -> None:
        """Every contestant, ratio and slope of a record that has no sections of its own."""
        if self.record is None:
            note("Not measured yet.")
            return
        note(f"Shown: {records.caption(self.record)}.")
        self.show_ratios()
        body = []
        for i in range(self.record.sizes.get("contestant", 0)):
            row = self.record.isel(contestant=i)
            numbers = [
                (float(row.operations) / median(row) / 1e12, ".3g"),
                (float(row.disagreement), ".1e"),
                (float(row.peak_bytes) / 2**20, ".0f"),
            ]
            texts = [format(n, form) if np.isfinite(n) else "–" for n, form in numbers]
            names = [row[name].item() for name in ("case", "label")]
            body.append([*names, time_text(median(row)), *texts])
        head = ["case", "", "median time", "10¹² operations a second", "differs by"]
        show_table([*head, "peak (MiB of the GPU)"], body)
        self.show_slopes()
        self.show_conditions()

    def show_commands(self) -> None:
        """The times of whole commands, where they were taken."""
        whole = self.attribute("whole")
        if not whole.get("seconds"):
            note("Not measured yet: make bench WHOLE=1 times make book and make test as well.")
            return
        body = [[name, time_text(value)] for name, value in whole["seconds"].items()]
        body += [[name, "failed"] for name in whole.get("failed", [])]
        show_table(["", "time"], body)
        note(
            f"In a clone of commit {whole['commit'][:7]}, {whole['date']}, one after the other; "
            "the first and the last install packages, as fast as the network is. make test "
            "builds the book first: with nothing built it takes as long as those two."
        )

    def show_conditions(self) -> None:
        """The peers' versions, and who was left out."""
        if self.record is None:
            return
        body = [
            [peer, ", ".join(f"{name} {number}" for name, number in versions.items())]
            for peer, versions in self.attribute("peers").items()
        ]
        show_table(["peer", "versions"], body)
        if absent := [[": ".join(map(str, told))] for told in self.attribute("left_out")]:
            show_table(["left out"], absent)
        else:
            note("Nobody was left out.")
