"""Every case in turn: parity first, then time, memory, and how far each contender is from the machine's arithmetic."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Step, UnavailableError, first_call
from benchmarks.memory import largest_batch, peak_memory_mib
from benchmarks.ops import Op
from benchmarks.parity import Parity, parity
from capsella.bench import Timing, interleaved

Known = dict[tuple[Op, int, str], list[Parity]]
"""Parity by op, batch size and contender."""
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How to measure. `seconds`: of interleaved rounds a case at least, where `repeats` rounds take less."""

    device: torch.device
    repeats: int = 7
    seconds: float = 2.0
    memory: bool = True
    largest_batch: bool = False


class Verdict(NamedTuple):
    """A number beside its bar. met: at least the bar, or at most, as `least` says."""

    what: str
    value: float
    bar: float
    least: bool

    @property
    def met(self) -> bool:
        """On the right side of the bar."""
        return self.value >= self.bar if self.least else self.value <= self.bar


@dataclass
class Result:
    """What was measured of one case, by contender."""

    case: Case
    flops: int
    parity: dict[str, list[Parity]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)
    largest_batch: dict[str, int] = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, list[Parity]]:
        """Contenders that compute something else, and what; they are not timed."""
        red = {name: [row for row in rows if not row.agrees] for name, rows in self.parity.items()}
        return {name: rows for name, rows in red.items() if rows}

    def ratio(self, contender: str, other: str) -> float | None:
        """How many times as fast as `other` a contender is; None where one was not timed."""
        if contender not in self.timings or other not in self.timings:
            return None
        return self.timings[other].median / self.timings[contender].median

    def verdicts(self, contender: str) -> list[Verdict]:
        """A fused contender beside every bar of its case that was measured."""
        if contender not in self.timings:
            return []
        bars, seconds = self.case.bars, self.timings[contender].median
        mib, plain_mib = self.memory_mib.get(contender), self.memory_mib.get("plain")
        slower = self.ratio("bare", contender)
        rows = [
            ("times as fast as plain", self.ratio(contender, "plain"), bars.plain, True),
            ("times as fast as compile", self.ratio(contender, "compile"), bars.compile, True),
            ("times as long as bare", slower, bars.bare, False),
            ("of plain's memory", mib / plain_mib if mib is not None and plain_mib else None, bars.memory, False),
            ("images/s", self.case.batch / seconds, bars.images_per_second, True),
            ("MiB", mib, bars.memory_mib, False),
        ]
        return [
            Verdict(what, value, bar, least)
            for what, value, bar, least in rows
            if value is not None and bar is not None
        ]


def verify_case(case: Case, contenders: Sequence[Contender], device: torch.device, known: Known) -> Result:
    """The parity of every fused contender, once for each op and batch size: `known` keeps it."""
    result = Result(case, flops=0)
    for contender in (one for one in contenders if one.fused):
        key = (case.op, case.batch, contender.name)
        try:
            if key not in known:
                known[key] = parity(case.op, case.batch, contender, device)
            result.parity[contender.name] = known[key]
        except ValueError as error:
            if not str(error).startswith("backend:"):
                raise
            result.unavailable[contender.name] = str(error).removeprefix("backend: ")
    return result


def run_case(case: Case, contenders: Sequence[Contender], options: Options, known: Known) -> Result:
    """Verify and then measure one case; contenders whose parity is red are left out."""
    result = verify_case(case, contenders, options.device, known)
    result.flops = case.op.flops(case.op.inputs(case.batch), case.training)
    out = {*result.refused, *result.unavailable}
    fit = [one for one in contenders if one.suits(case.op) and one.name not in out]
    steps: dict[str, Step] = {}
    for contender in fit:
        if step := _where_available(result, contender, lambda one: _called(one.step(case, options.device))):
            steps[contender.name] = step
    result.timings = interleaved(steps, options.repeats, options.seconds, options.device)
    steps.clear()
    gc.collect()
    for contender in (one for one in fit if one.name in result.timings and case.training):
        if options.memory:
            mib = _where_available(result, contender, lambda one: peak_memory_mib(case, one, options.device))
            if mib is not None:
                result.memory_mib[contender.name] = mib
        if options.largest_batch:
            most = _where_available(result, contender, lambda one: largest_batch(case, one, options.device))
            if most is not None:
                result.largest_batch[contender.name] = most
    return result


def _called(step: Step) -> Step:
    first_call(step)
    return step


def _where_available(result: Result, contender: Contender, measure: Callable[[Contender], T]) -> T | None:
    """What `measure` says of a contender; None, and noted in the result, where it cannot run."""
    try:
        return measure(contender)
    except UnavailableError as error:
        result.unavailable[contender.name] = str(error)
        return None
