"""What every page of an experiment does around its run: keep it, show what is recorded, judge."""

import json
import time
from collections.abc import Mapping

import xarray as xr
from IPython.display import display

from iterlin.runtime.precision import product_precision
from iterlin.study import (
    claims,
    claims_table,
    comparison,
    experiment_pages,
    extension,
    plotting,
    records,
    runs,
)
from iterlin.study.tables import said


class Page:
    """An experiment's page, made in its first cell after the parameters.

    namespace: the page's own, ``globals()``, from which the values of all its parameters are taken.
    The rules that judge its record are those of this moment. Figures get the book's style.
    extends: whether seeds that its record holds are left out of its grids, and filled in by
    `completed` (`extension`).

    Raises ValueError if the book has no page of that name, or a parameter has no value.
    """

    def __init__(self, experiment: str, namespace: Mapping, *, extends: bool = False):
        self.started = time.perf_counter()
        self.experiment = experiment
        self.path = experiment_pages.path_of(experiment)
        names = experiment_pages.defaults(self.path)
        if missing := names.keys() - namespace.keys():
            raise ValueError(f"parameters without a value: {', '.join(sorted(missing))}")
        self.parameters = {name: namespace[name] for name in names}
        self.tier = self.parameters["tier"]
        self.rules = claims.rules(experiment)
        self.held, self.seeds = self._held() if extends else (None, [])
        extension.leave(self.seeds)
        plotting.use_style()

    def _held(self) -> tuple[xr.Dataset | None, list[int]]:
        """The record that this run gives more seeds, and those that it has; none for a quick run,
        which every build makes anew."""
        if self.tier == "quick":
            return None, []
        try:
            record = records.load(self.experiment, self.tier)
        except (FileNotFoundError, ValueError):  # one that is damaged is made anew
            return None, []
        seeds = extension.whole_seeds(record, experiment_pages.plain(self.parameters))
        if not seeds or record.attrs.get("products") != product_precision():
            return None, []
        if comparison.since(self.experiment):
            runs.say(f"{self.experiment}: its quick run has changed: all seeds are trained anew")
            return None, []
        runs.say(f"{self.experiment}: seeds {seeds} are taken from the record")
        return record, seeds

    def completed(self, live: xr.Dataset) -> xr.Dataset:
        """The runs with those that the record holds already, in the place of what was not trained.

        To be called once, before statistics over seeds. What depends on several seeds must not be
        in the data set yet. Raises ValueError where the record does not fit.
        """
        if self.held is None:
            return live
        return extension.completed(live, self.held, self.seeds)

    def save(
        self,
        live: xr.Dataset,
        *,
        data: str = "",
        seconds: float | None = None,
        missing: int | None = None,
    ) -> xr.Dataset:
        """Record this run; returns it with what it came from as attributes.

        data names the data set. seconds it took and runs that are missing are those that the data
        set was given by `runs.grid`, or the time since this object was made, and none. To them
        comes the time of seeds that the record had already.
        """
        if seconds is None:
            seconds = live.attrs.get("seconds", time.perf_counter() - self.started)
        earlier, rules = [], self.rules
        if self.held is not None:
            earlier = extension.parts(self.held, self.seeds)
            # What judges is to be the rule of the first part: one changed since then shows.
            rules = rules | json.loads(self.held.attrs.get("rules", "{}"))
        return records.save(
            live.assign_attrs(rules=json.dumps(rules, sort_keys=True)),
            self.experiment,
            self.tier,
            parameters=self.parameters,
            data_note=data,
            wall_time=seconds,
            missing=live.attrs.get("missing", 0) if missing is None else missing,
            earlier=earlier,
        )

    def shown(self, live: xr.Dataset) -> xr.Dataset:
        """The record of the highest tier there is, else this run; displays which it is, and whether
        the quick run gives what it gave when the record was made.

        In the place of a record that lacks a variable of this run, this run is shown.
        """
        recorded = records.best(self.experiment)
        if recorded is not None and (lacking := live.keys() - recorded.keys()):
            names = ", ".join(sorted(map(str, lacking)))
            older = f"The record is older than this page: it lacks {names}."
            display(said(older, emphasised=True))
            recorded = None
        shown = live if recorded is None else recorded
        caption = records.caption(shown)
        if recorded is not None and self.tier == "quick":
            caption += f"; {comparison.sentence(recorded, live)}"
        note = f" {data}." if (data := shown.attrs["data"]) else ""
        display(said(f"Shown: {caption}.{note}", emphasised=True))
        return shown

    def limits(self, live: xr.Dataset) -> bool:
        """Whether the page's limits are to hold for this run: one of the quick tier, and whole.

        Other tiers are judged by the verdicts on their records.
        """
        return self.tier == "quick" and not records.missing_runs(live)

    def verdicts(self) -> None:
        """Display the claims that this page judges."""
        claims_table.show(experiment_pages.name_of(self.path))
