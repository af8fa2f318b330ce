"""The workers' places: each starts a worker, answers its steps, kills or freezes it there, and starts the next one.

What belongs here: everything done to one worker process, and the meeting of a frozen one with its successor. What does not: when
(``disruptions.py``), and what the worker does (``worker.py``).
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from sla_pipeline_tests.chaos.chronicle import Chronicle
from sla_pipeline_tests.chaos.disruptions import Freeze, Kill
from sla_pipeline_tests.chaos.worker import Answer, Contract, Report, work

__all__ = ["Seat", "Stage"]

# a step that is not reached in this time is not waited for: the kill meets the worker where it is
_ARMED_SECONDS = 5.0
# how long a successor is held while the zombie that it replaces does what it still can
_HELD_SECONDS = 3.0
_JOIN_SECONDS = 30.0

# A worker is forked from a process that has imported everything: a start costs milliseconds instead of a second of a busy machine.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["__main__", "sla_pipeline_tests.chaos.worker"])
_starting = threading.Lock()


@dataclass(slots=True)
class Encounter:
    """A frozen worker waits for its successor to reach a step, and the successor for what the frozen one does next."""

    zombie: int
    until: str
    opens_at: float
    visitor: int | None = None
    over: bool = False


@dataclass(slots=True)
class Stage:
    """What the seats share. Every field but the first three is guarded by ``changed``."""

    chronicle: Chronicle
    cut_lock_holder: Callable[[], None]
    changed: threading.Condition = field(default_factory=threading.Condition)
    encounter: Encounter | None = None
    long_frozen: int | None = None
    calm: bool = False
    """No pauses and no more disruptions."""
    ending: bool = False
    """Workers are told to end after their cycle."""
    aborted: bool = False
    """Everything ends at once."""


class Seat(threading.Thread):
    """One worker's place, from the first process on it to the last."""

    def __init__(self, number: int, contract: Contract, stage: Stage, rng: random.Random) -> None:
        super().__init__(name=f"seat {number}", daemon=True)
        self.number = number
        self._contract = contract
        self._stage = stage
        self._rng = rng
        self._process: ForkServerProcess | None = None
        self._pipe: Connection[Answer, Report] | None = None
        self._armed: list[tuple[float, Kill | Freeze]] = []
        self._engaged = False
        self._last_step = "start"
        self._killed = False

    # --- from other threads ---------------------------------------------------------------------------------------------------------

    def arm(self, order: Kill | Freeze) -> None:
        """Have ``order`` carried out when its step is reached."""
        with self._stage.changed:
            self._armed.append((time.monotonic(), order))

    def may_freeze(self) -> bool:
        """Whether no freeze is under way or ordered here."""
        with self._stage.changed:
            return not self._engaged and not any(isinstance(order, Freeze) for _, order in self._armed)

    @property
    def has_orders(self) -> bool:
        """Whether an order waits for its step, or a freeze is under way."""
        with self._stage.changed:
            return bool(self._armed) or self._engaged

    def kill_late(self) -> None:
        """Kill where it is for each kill whose step was not reached in time."""
        with self._stage.changed:
            # while a server is away most steps cannot be reached
            latest = time.monotonic() - _ARMED_SECONDS if self._stage.chronicle.seconds_in_order > _ARMED_SECONDS else 0.0
            late = [entry for entry in self._armed if isinstance(entry[1], Kill) and entry[0] < latest]
        for entry in late:
            if self.kill_now():
                with self._stage.changed:
                    self._armed.remove(entry)

    def kill_now(self) -> bool:
        """SIGKILL, wherever the worker is. False, and nothing done, while it takes part in an encounter or has just been killed."""
        with self._stage.changed:
            process = self._process
            if self._engaged or self._killed or process is None or not process.is_alive():
                return False
            self._kill(process, "random")
        return True

    def abandon(self) -> None:
        """Kill for good; the thread ends."""
        with self._stage.changed:
            process, self._killed = self._process, True
        if process is not None and process.is_alive():
            process.kill()

    # --- the thread -----------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Start worker after worker until told to end."""
        generation = 0
        while not self._stage.aborted and not self._serve(generation):
            generation += 1

    def _serve(self, generation: int) -> bool:
        """One worker's life. True when it ended because it was told to."""
        told_to_end = False
        pipe, process = self._start(generation)
        try:
            while True:
                report = pipe.recv()
                if report.step is None:
                    self._stage.chronicle.cycle_ended(self.number, report.outcome, report.told)
                    self._zombie_has_done_its_best()
                    self._last_step = "cycle ended"
                    told_to_end = self._stage.ending
                    pipe.send("end" if told_to_end else "go")
                else:
                    self._at_step(process, pipe, report.step)
        except (EOFError, OSError):
            pass  # the worker is gone
        finally:
            pipe.close()
        self._zombie_has_done_its_best()
        process.join(_JOIN_SECONDS)
        with self._stage.changed:
            if not self._killed and not told_to_end:
                self._stage.chronicle.died(self.number, process.exitcode)
                # not in a tight circle
                self._stage.changed.wait(1.0)
        return told_to_end

    def _start(self, generation: int) -> "tuple[Connection[Answer, Report], ForkServerProcess]":
        ours, theirs = _processes.Pipe()
        contract = replace(self._contract, seed=f"{self._contract.seed} {generation}")
        process = _processes.Process(target=work, args=(theirs, contract), name=f"worker {self.number}.{generation}", daemon=True)
        with _starting:
            process.start()
        theirs.close()
        with self._stage.changed:
            self._process, self._pipe, self._killed, self._last_step = process, ours, self._stage.aborted, "start"
        return ours, process

    def _at_step(self, process: ForkServerProcess, pipe: "Connection[Answer, Report]", step: str) -> None:
        self._last_step = step
        self._stage.chronicle.note("step", seat=self.number, step=step)
        self._be_held(step)
        match self._order_for(step):
            case Kill(delay=delay) as order:
                if delay is not None:
                    pipe.send("go")
                    time.sleep(delay)
                with self._stage.changed:
                    if not self._killed:
                        self._kill(process, order.moment)
            case Freeze() as order:
                self._freeze(process, pipe, order)
            case None:
                self._pause()
                pipe.send("go")

    def _order_for(self, step: str) -> Kill | Freeze | None:
        stage = self._stage
        with stage.changed:
            for entry in self._armed:
                order = entry[1]
                if order.step != step or stage.calm:
                    continue
                if isinstance(order, Freeze):
                    if self._engaged or (order.until and stage.encounter) or (order.seconds and stage.long_frozen is not None):
                        continue
                    self._engaged = True
                    if order.seconds:
                        stage.long_frozen = self.number
                elif self._engaged:
                    continue
                self._armed.remove(entry)
                return order
        return None

    def _pause(self) -> None:
        """Mostly nothing, sometimes milliseconds, seldom much: wide enough for rivals to come between any two steps."""
        seconds = self._rng.choice((0.0, 0.0, 0.0, self._rng.uniform(0, 0.02), self._rng.uniform(0, 0.15)))
        with self._stage.changed:
            encounter = self._stage.encounter
            if self._stage.calm or (encounter is not None and encounter.zombie == self.number):
                return
        time.sleep(seconds)

    def _kill(self, process: ForkServerProcess, moment: str) -> None:
        process.kill()
        self._killed = True
        self._stage.chronicle.note("killing", seat=self.number, last_step=self._last_step)
        self._stage.chronicle.killed(self.number, moment)

    # --- freezing -------------------------------------------------------------------------------------------------------------------

    def _freeze(self, process: ForkServerProcess, pipe: "Connection[Answer, Report]", order: Freeze) -> None:
        stage = self._stage
        if order.delay is not None:
            pipe.send("go")
            time.sleep(order.delay)
        self._signal(process, signal.SIGSTOP)
        moment = order.step if order.delay is None else f"just after {order.step}"
        stage.chronicle.frozen(self.number, moment, {"seconds": order.seconds, "until": order.until, "cut": order.cut})
        if order.cut:
            stage.cut_lock_holder()
        with stage.changed:
            if order.until:
                stage.encounter = Encounter(self.number, order.until, opens_at=time.monotonic() + order.seconds)
                stage.changed.wait_for(self._is_met, order.patience)
            else:
                stage.changed.wait_for(lambda: stage.aborted, order.seconds)
            if stage.encounter is not None and stage.encounter.zombie == self.number and stage.encounter.visitor is None:
                stage.encounter = None
                stage.chronicle.note("nobody came", seat=self.number)
            if order.seconds:
                stage.long_frozen = None
        self._signal(process, signal.SIGCONT)
        stage.chronicle.note("thawed", seat=self.number)
        if order.delay is None:
            pipe.send("go")
        with stage.changed:
            if stage.encounter is None or stage.encounter.zombie != self.number:
                self._engaged = False

    def _is_met(self) -> bool:
        encounter = self._stage.encounter
        # in calm there is nothing to wait for but a freeze that is to last
        timely = encounter is None or time.monotonic() >= encounter.opens_at
        return self._stage.aborted or (encounter is not None and encounter.visitor is not None) or (self._stage.calm and timely)

    def _signal(self, process: ForkServerProcess, number: signal.Signals) -> None:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, number)

    def _be_held(self, step: str) -> None:
        """Wait here when a frozen worker waits for somebody to come to this step."""
        stage = self._stage
        with stage.changed:
            encounter = stage.encounter
            if (
                encounter is None
                or encounter.visitor is not None
                or encounter.zombie == self.number
                or encounter.until != step
                or time.monotonic() < encounter.opens_at
                or self._engaged
            ):
                return
            encounter.visitor = self.number
            self._engaged = True
            stage.chronicle.encounters += 1
            stage.chronicle.note("encounter", visitor=self.number, zombie=encounter.zombie, step=step)
            stage.changed.notify_all()
            met = stage.changed.wait_for(lambda: encounter.over or stage.aborted, _HELD_SECONDS)
            stage.chronicle.note("released", visitor=self.number, zombie_had_ended=met)
            self._engaged = False
            stage.encounter = None if stage.encounter is encounter else stage.encounter

    def _zombie_has_done_its_best(self) -> None:
        stage = self._stage
        with stage.changed:
            if stage.encounter is not None and stage.encounter.zombie == self.number:
                stage.encounter.over = True
                stage.changed.notify_all()
            self._engaged = False
