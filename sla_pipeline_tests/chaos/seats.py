"""The workers' places: each starts a worker, answers its steps, kills or freezes it there, and starts the next one.

What belongs here: everything done to one worker process, and the meeting of a frozen one with its successor. What does
not: when (``disruptions.py``), and what the worker does (``worker.py``).
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from sla_pipeline_tests.chaos.disruptions import Freeze, Kill
from sla_pipeline_tests.chaos.stage import Stage
from sla_pipeline_tests.chaos.worker import Answer, Contract, Report, work

__all__ = ["Seat"]

# how long a successor is held while the zombie that it replaces does what it still can
_HELD_SECONDS = 3.0
_JOIN_SECONDS = 30.0
# the longest pause after a step; between claim and mark there must be time for an operator to answer
_PAUSE_SECONDS = 0.15
_CLAIMED_SECONDS = 1.0

# A worker is forked from a process that has imported everything: a start costs milliseconds instead of a second of a
# busy machine.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["__main__", "sla_pipeline_tests.chaos.worker"])
_starting = threading.Lock()


class Seat(threading.Thread):
    """One worker's place, from the first process on it to the last."""

    def __init__(self, number: int, contract: Contract, stage: Stage, rng: random.Random) -> None:
        super().__init__(name=f"seat {number}", daemon=True)
        self.number = number
        self._contract = contract
        self._stage = stage
        self._rng = rng
        self._process: ForkServerProcess | None = None
        self._engaged = False
        self._last_step = "start"
        self._killed = False

    # --- from other threads
    # ---------------------------------------------------------------------------------------------------------

    @property
    def is_engaged(self) -> bool:
        """Whether the worker is frozen, or takes part in an encounter."""
        with self._stage.changed:
            return self._engaged

    def kill_now(self) -> bool:
        """SIGKILL, wherever the worker is. False, and nothing done, while it takes part in an encounter or has just
        been killed.
        """
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

    # --- the thread
    # -----------------------------------------------------------------------------------------------------------------

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
                    self._cycle_is_over()
                    self._last_step = "cycle ended"
                    told_to_end = self._stage.ending
                    pipe.send("end" if told_to_end else "go")
                else:
                    self._at_step(process, pipe, report.step)
        except (EOFError, OSError):
            pass  # the worker is gone
        finally:
            pipe.close()
        self._cycle_is_over()
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
        process = _processes.Process(
            target=work, args=(theirs, contract), name=f"worker {self.number}.{generation}", daemon=True
        )
        with _starting:
            process.start()
        theirs.close()
        with self._stage.changed:
            self._process, self._killed, self._last_step = process, False, "start"
            if self._stage.aborted:
                self._killed = True
                process.kill()
        return ours, process

    def _at_step(self, process: ForkServerProcess, pipe: "Connection[Answer, Report]", step: str) -> None:
        self._last_step = step
        self._stage.chronicle.note("step", seat=self.number, step=step)
        self._be_held(step)
        with self._stage.changed:
            order = None if self._engaged else self._stage.take_order(self.number, step)
            self._engaged = self._engaged or isinstance(order, Freeze)
        match order:
            case Kill():
                if order.delay is not None:
                    pipe.send("go")
                    time.sleep(order.delay)
                with self._stage.changed:
                    if not self._killed:
                        self._kill(process, order.moment)
            case Freeze():
                self._freeze(process, pipe, order)
            case None:
                self._pause(_CLAIMED_SECONDS if step == "claimed" else _PAUSE_SECONDS)
                pipe.send("go")

    def _pause(self, longest: float) -> None:
        """Mostly nothing, sometimes milliseconds, seldom much: wide enough for rivals to come between any two steps."""
        seconds = self._rng.choice((0.0, 0.0, 0.0, self._rng.uniform(0, longest / 8), self._rng.uniform(0, longest)))
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

    # --- freezing
    # -------------------------------------------------------------------------------------------------------------------

    def _freeze(self, process: ForkServerProcess, pipe: "Connection[Answer, Report]", order: Freeze) -> None:
        stage = self._stage
        if order.delay is not None:
            pipe.send("go")
            time.sleep(order.delay)
        os.kill(process.ident or 0, signal.SIGSTOP)
        moment = order.step if order.delay is None else f"just after {order.step}"
        stage.chronicle.frozen(self.number, moment, {"seconds": order.seconds, "until": order.until, "cut": order.cut})
        if order.cut:
            stage.cut_lock_holder()
        with stage.changed:
            encounter = stage.encounter if order.until else None
            if encounter is None:
                stage.changed.wait_for(lambda: stage.aborted, order.seconds)
            else:
                stage.changed.wait_for(lambda: encounter.visitor is not None or stage.aborted, order.patience)
                if encounter.visitor is None:
                    stage.encounter = None
            stage.long_freeze = stage.long_freeze and not order.seconds
            # met by its successor, it must not be killed before its cycle has ended
            self._engaged = stage.encounter is not None and stage.encounter is encounter
            os.kill(process.ident or 0, signal.SIGCONT)
            stage.chronicle.note("thawed", seat=self.number, met=self._engaged)
        if order.delay is None:
            pipe.send("go")

    def _be_held(self, step: str) -> None:
        """Wait here when a frozen worker waits for somebody to come to this step."""
        stage = self._stage
        with stage.changed:
            encounter = stage.encounter
            if encounter is None or self._engaged or not encounter.is_open_for(self.number, step):
                return
            encounter.visitor = self.number
            # until its cycle ends: killed before, it would not show what the zombie made it do
            self._engaged = True
            stage.chronicle.encounters += 1
            stage.chronicle.note("encounter", visitor=self.number, zombie=encounter.zombie, step=step)
            stage.changed.notify_all()
            ended = stage.changed.wait_for(lambda: encounter.over or stage.aborted, _HELD_SECONDS)
            stage.chronicle.note("released", visitor=self.number, zombie_had_ended=ended)
            stage.encounter = None

    def _cycle_is_over(self) -> None:
        """A zombie has done its best, a visitor has shown what came of it."""
        stage = self._stage
        with stage.changed:
            self._engaged = False
            if stage.encounter is not None and stage.encounter.zombie == self.number:
                stage.encounter.over = True
                stage.changed.notify_all()
