"""What every page of an experiment does around its run: keep it, show what is recorded, judge."""

import json
import time
from collections.abc import Mapping

import xarray as xr
from IPython.display import HTML, display
from iterlin.linearise.precision import matmul_precision
from iterlin.linearise.validation import check_one_of, check_positive_integer
from iterlin.training.loop import OutOfTime

from iterlin_study.records import (
    comparison,
    csv_files,
    environment,
    experiment_pages,
    extension,
    records,
)
from iterlin_study.report import claims, claims_table, plotting
from iterlin_study.report.tables import said
from iterlin_study.runs import grids


class Page:
    """An experiment's page, made in its first cell after the parameters.

    namespace: ``globals()`` of the page, which has the values of all its parameters. The rules that
    judge its record are read now, before the run. Figures get the book's style. extends: skip the
    seeds that its record holds; `completed` fills them in (`extension`).

    Raises ValueError if the book has no page of that name, a parameter has no value, no record can
    be of the tier, or there is no seed.
    """

    def __init__(self, experiment: str, namespace: Mapping, *, extends: bool = False):
        self.started = time.perf_counter()
        self.experiment = experiment
        self.path = experiment_pages.path_of(experiment)
        names = experiment_pages.defaults(self.path)
        missing = names.keys() - namespace.keys()
        missing |= {"tier"} - names.keys()
        if missing:
            raise ValueError(f"parameters without a value: {', '.join(sorted(missing))}")
        self.parameters = {name: namespace[name] for name in names}
        self.tier = self.parameters["tier"]
        check_one_of("tier", self.tier, records.TIERS)
        if extension.SEEDS in self.parameters:
            check_positive_integer(extension.SEEDS, self.parameters[extension.SEEDS])
        self.rules = claims.rules(experiment)
        self.held, self.seeds = self._held() if extends else (None, [])
        extension.leave(self.seeds)
        plotting.use_style()

    def _held(self) -> tuple[xr.Dataset | None, list[int]]:
        """Return the record that this run adds seeds to, and the seeds that it has.

        None for a quick run, which every build makes anew.
        """
        if self.tier == "quick":
            return None, []
        try:
            record = records.load(self.experiment, self.tier)
        except (FileNotFoundError, ValueError):  # one that is damaged is made anew
            return None, []
        seeds = extension.whole_seeds(record, experiment_pages.plain(self.parameters))
        if not seeds or record.attrs.get("products") != matmul_precision():
            return None, []
        if comparison.since(self.experiment):
            grids.say(f"{self.experiment}: its quick run has changed: all seeds are trained anew")
            return None, []
        grids.say(f"{self.experiment}: seeds {seeds} are taken from the record")
        return record, seeds

    def completed(self, live: xr.Dataset) -> xr.Dataset:
        """Return the runs, with the record's values of the seeds that were not trained.

        Call it once, before any statistic over seeds. Raises ValueError if the record does not fit.
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
        """Record this run; return it with its provenance as attributes.

        data names the data set. seconds and missing are by default the attributes that `grids.grid`
        gave the data set, else the time since this object was made, and 0. The time of seeds that
        the record had already is added.

        Raises OutOfTime if the deadline has left no run finished.
        """
        ends = [value for name, value in live.items() if "diverged_at" in str(name)]
        # A share may have no run of this page's; it records nothing.
        alone = environment.share() is None
        if alone and ends and all(bool(end.isnull().all()) for end in ends):
            raise OutOfTime(f"{self.experiment}: the deadline came before a run was finished")
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
        """Return the best record, else this run, and display its caption, with the record as CSV.

        The caption says whether the quick run still gives the numbers that it gave when the record
        was made. A record that lacks a variable of this run is older than the page: this run is
        shown instead.
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
        up = "../" * experiment_pages.name_of(self.path).count("/")
        csv = "" if recorded is None else f"{up}{csv_files.FOLDER}/{csv_files.name_of(recorded)}"
        display(said(f"Shown: {caption}.{note}", emphasised=True, csv=csv))
        return shown

    def limits(self, live: xr.Dataset) -> bool:
        """Return whether the page's assertions apply: to a whole run of the quick tier."""
        return self.tier == "quick" and not records.missing_runs(live)

    def verdicts(self) -> None:
        """Display the claims that this page judges."""
        display(HTML(claims_table.table(experiment_pages.name_of(self.path))))
