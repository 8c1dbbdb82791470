"""A study: Optuna's trials in a database that any number of processes share, as the schedule's jobs."""

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from capsella.errors import CapsellaError, check_installed
from capsella.search.schedule import BASE, Job, Record, State, rungs_of
from capsella.search.space import Label, Space
from capsella.search.storage import GRACE, give_first_sign, open_storage

FAR = 1.0
"""The excess of a candidate that no limit refused: it could not be trained at all."""
IMAGES = "set of images"
"""The setting that says which images a study is on."""
_MOST_SHOWN = 60  # characters
_ELSE = "call it as before, or choose another folder with --out"


def check_optuna() -> None:
    """Raises:
    CapsellaError: Optuna is not installed; says how to get it.
    """
    check_installed("a search", "search", "optuna")


@dataclass
class Study:
    """The trials that all workers share.

    storage, trials: Optuna's storage and study. space: that candidates are drawn from. points, costs: of each
    candidate, by the trials that were read last. yardstick: the best of `Stopwatch` that any worker had, milliseconds.
    """

    storage: Any
    trials: Any
    space: Space
    points: dict[int, dict[str, Label]] = field(default_factory=dict)
    costs: dict[int, dict[str, float]] = field(default_factory=dict)
    yardstick: float = float("inf")

    @classmethod
    def open(
        cls, url: str, name: str, space: Space, objectives: Sequence[str], seed: int = 0, grace: int = GRACE
    ) -> "Study":
        """The study of this name in a database, made where it is not there.

        Args:
            url: of the database, as sqlite:///study.db.
            name: of the study.
            space: to draw from.
            objectives: what is to be small.
            seed: of the draws.
            grace: seconds without a sign of life after which a worker counts as dead.

        Raises:
            CapsellaError: Optuna is not installed, the database cannot be opened, or the study has other objectives.
        """
        check_optuna()
        import optuna

        from capsella.search.sampler import RungSampler, directions, hush

        hush()
        sampler = RungSampler(space, seed, records_of)
        try:
            storage = open_storage(url, grace)
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                sampler=sampler,
                directions=directions(objectives),
                load_if_exists=True,
            )
        except Exception as error:  # each database has errors of its own
            raise CapsellaError(f"the study cannot be opened at {url}: {error}") from error
        if len(study.directions) != len(objectives):
            raise CapsellaError(f"the study {name!r} was begun with other objectives; {_ELSE}")
        return cls(storage, study, space)

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings, or compare them with those that are kept.

        Raises:
            CapsellaError: the study was begun with others.
        """
        kept = self.settings
        if not kept:
            self.trials.set_metric_names(list(settings["objectives"]))
            self.trials.set_user_attr("settings", dict(settings))
            return
        # Begun before a warm-up left any out, and before the images were kept.
        kept = {"rungs": list(rungs_of(kept["length"]["epochs"])), IMAGES: settings[IMAGES], **kept}
        asked = json.loads(json.dumps(settings))
        changed = [name for name, value in asked.items() if kept.get(name) != value]
        if changed:
            each = "; ".join(_changed(name, kept.get(name), asked[name]) for name in changed)
            raise CapsellaError(f"the study {self.trials.study_name!r} was begun with other settings: {each}; {_ELSE}")

    @property
    def settings(self) -> dict[str, Any]:
        """What all workers agree on; empty in a study that has not begun."""
        found: dict[str, Any] = self.trials.user_attrs.get("settings", {})
        return found

    def begin(self, base: Mapping[str, Label]) -> None:
        """The recipe itself is the first candidate; where two workers ask for it at once, the second is surplus."""
        if not self.trials.get_trials(deepcopy=False):
            self.trials.enqueue_trial(dict(base), user_attrs={"candidate": BASE, "rung": 0, "seed": 0})

    def records(self) -> list[Record]:
        """All trials, with those whose worker died counted as lost."""
        import optuna

        optuna.storages.fail_stale_trials(self.trials)
        trials = self.trials.get_trials(deepcopy=False)
        give_first_sign(self.storage, trials)
        for trial in trials:
            candidate = trial.user_attrs.get("candidate", trial.number)
            point = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            if candidate == trial.number and trial.user_attrs.get("surplus"):
                self.points.pop(candidate, None)  # one too many: it may be drawn again
            elif point.keys() == self.space.of.keys():  # else its worker died as it drew them
                self.points.setdefault(candidate, point)
            if "parameters" in trial.user_attrs:
                names = ("parameters", "ms")
                found = {name: trial.user_attrs[name] for name in names if name in trial.user_attrs}
                self.costs[candidate] = {**found, **self.costs.get(candidate, {})}
            self.yardstick = min(self.yardstick, trial.user_attrs.get("yardstick", self.yardstick))
        return records_of(trials)

    def cost_of(self, point: Mapping[str, Label]) -> dict[str, float]:
        """What is known of the network at a point, from any candidate that has the same one; empty of a new network."""
        mine, found = _network(point), dict[str, float]()
        for candidate, cost in sorted(self.costs.items()):  # in one order, for all workers
            if _network(self.points[candidate]) == mine:
                found = {**cost, **found}
        return found

    def is_repeated(self, claim: "Claim") -> bool:
        """Whether an earlier candidate has the same point."""
        return any(other < claim.job.candidate and point == claim.point for other, point in self.points.items())

    def seconds_spent(self) -> float:
        """How long at least one worker was at work, in all; trials that a killed worker left behind do not count."""
        self.records()  # which counts the killed ones as lost
        now, end, spent = datetime.now(), datetime.min, 0.0  # as Optuna, which knows no zones
        trials = self.trials.get_trials(deepcopy=False)
        known = [one for one in trials if one.state.name != "FAIL" or "interrupted" in one.user_attrs]
        spans = [(one.datetime_start, one.datetime_complete or now) for one in known if one.datetime_start is not None]
        for begun, over in sorted(spans):
            is_pause = (begun - end).total_seconds() > GRACE  # shorter: a worker between two trials
            spent += max(0.0, (over - (begun if is_pause else end)).total_seconds())
            end = max(end, over)
        return spent

    def ask(self, job: Job | None) -> "Claim":
        """A trial for this worker: a waiting one where there is one, else for this job, or for a new candidate."""
        from capsella.search.sampler import distributions

        if job is not None:
            attributes = job._asdict()
            self.trials.enqueue_trial(dict(self.points[job.candidate]), user_attrs=attributes)
        trial = self.trials.ask(distributions(self.space))
        found = trial.user_attrs
        mine = Job(found.get("candidate", trial.number), found.get("rung", 0), found.get("seed", 0))
        claim = Claim(self, trial, mine, dict(trial.params))
        claim.beat()  # a worker that dies before its first sign of life would never count as dead
        for name, value in mine._asdict().items():
            if name not in found:
                trial.set_user_attr(name, value)
        return claim


@dataclass
class Claim:
    """A trial that this worker has to itself."""

    study: Study
    trial: Any
    job: Job
    point: dict[str, Label]

    @property
    def number(self) -> int:
        """Of the trial."""
        return int(self.trial.number)

    def beat(self) -> None:
        """One sign of life."""
        import optuna

        with contextlib.suppress(optuna.exceptions.StorageInternalError):  # busy: the next one will do
            self.study.storage.record_heartbeat(self.trial._trial_id)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Signs of life while the trial is worked at."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.study.storage.heartbeat_interval):
                self.beat()

        self.beat()
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def keep(self, facts: Mapping[str, Any]) -> bool:
        """Facts of the trial; not of one that was taken for dead meanwhile."""
        import optuna

        try:
            for name, value in facts.items():
                self.trial.set_user_attr(name, value)
        except optuna.exceptions.UpdateFinishedTrialError:
            return False
        return True

    def finish(self, values: Sequence[float], **facts: Any) -> None:
        """The objectives are known; facts are kept beside them."""
        self._end("COMPLETE", list(values), facts)

    def refuse(self, why: str, excess: float, cost: Mapping[str, float]) -> None:
        """The candidate goes no further, and what is drawn later keeps away from it.

        excess, cost: see `TooCostlyError`.
        """
        self._end("PRUNED", None, {"refused": why, "excess": excess, **cost})

    def leave(self) -> None:
        """Another trial is for the same."""
        self._end("PRUNED", None, {"surplus": True})

    def lose(self, is_interrupted: bool) -> None:
        """The worker stops before the end: another may take it up. is_interrupted: for no fault of the job."""
        self._end("FAIL", None, {"interrupted": is_interrupted})

    def _end(self, state: str, values: list[float] | None, facts: Mapping[str, Any]) -> None:
        """A trial that was taken for dead meanwhile stays so; whoever takes it up finds the work done."""
        import optuna

        if self.keep(facts):
            self.study.trials.tell(self.trial, values, optuna.trial.TrialState[state], skip_if_finished=True)


def _changed(name: str, before: Any, now: Any) -> str:
    """A setting and its two values, where they are short enough to be read: "finalists 1, not 5"."""
    if name == IMAGES:
        return f"another {name}"
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return "; ".join(_changed(f"{name}.{key}", before.get(key), now.get(key)) for key in keys)
    values = f"{before}, not {now}"
    return f"another {name}" if len(values) > _MOST_SHOWN else f"{name} {values}"


def _network(point: Mapping[str, Label]) -> dict[str, Label]:
    """What of a point decides on its network: what it costs depends on nothing else."""
    return {path: value for path, value in point.items() if path.startswith("model.")}


def loss_of(point: Mapping[str, Label]) -> str:
    """What of a point decides on the scale of its loss, in one text."""
    deciding = {path: value for path, value in point.items() if path.startswith("loss.") or "reconstruction" in path}
    return json.dumps(deciding, sort_keys=True)


def records_of(trials: Sequence[Any]) -> list[Record]:
    """Optuna's trials as the schedule sees them; one whose worker died before it had drawn a point never was."""
    return [_record(trial) for trial in trials if trial.state.name != "FAIL" or "candidate" in trial.user_attrs]


def _record(trial: Any) -> Record:
    facts = trial.user_attrs
    states: dict[str, State] = {
        "WAITING": "waiting", "RUNNING": "running", "COMPLETE": "done", "FAIL": "lost", "PRUNED": "refused",
    }  # fmt: skip
    return Record(
        number=trial.number,
        job=Job(facts.get("candidate", trial.number), facts.get("rung", 0), facts.get("seed", 0)),
        state="surplus" if facts.get("surplus") else states[trial.state.name],
        values=tuple(trial.values or ()),
        loss=facts.get("loss", 0.0),
        loss_of=facts.get("loss_of", ""),
        epochs=facts.get("epochs", 0),
        seconds=facts.get("seconds", 0.0),
        is_interrupted=facts.get("interrupted", False),
        why=facts.get("refused", ""),
    )
