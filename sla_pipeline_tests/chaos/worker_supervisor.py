"""Supervisor of one worker process: starts it, answers its steps, kills or pauses it there, and starts the next one."""

import multiprocessing
import os
import random
import signal
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from sla_pipeline_tests.chaos.disruptions import Kill, Pause
from sla_pipeline_tests.chaos.run_state import RunState
from sla_pipeline_tests.chaos.worker import Reply, WorkerMessage, WorkerSettings, work

__all__ = ["WorkerSupervisor"]

# bound of a successor's wait for the end of the zombie that it replaces
_ENCOUNTER_SECONDS = 3.0
_JOIN_SECONDS = 30.0
# longest delay after a step; between claim and mark it leaves time for an operator's reply
_STEP_DELAY_SECONDS = 0.15
_CLAIMED_DELAY_SECONDS = 1.0

# Workers are forked from a process that has imported everything: a start takes milliseconds instead of a second on a
# busy machine.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["__main__", "sla_pipeline_tests.chaos.worker"])
_starting = threading.Lock()


class WorkerSupervisor(threading.Thread):
    """Thread that keeps one worker process running until the end of the run."""

    def __init__(self, number: int, settings: WorkerSettings, state: RunState, rng: random.Random) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self.number = number
        self._settings = settings
        self._state = state
        self._rng = rng
        self._process: ForkServerProcess | None = None
        self._engaged = False
        self._last_step = "start"
        self._killed = False

    # --- called from other threads

    @property
    def is_engaged(self) -> bool:
        """Whether the worker is paused or takes part in an encounter."""
        with self._state.changed:
            return self._engaged

    def kill_now(self) -> bool:
        """Send SIGKILL at any point of the cycle.

        Returns False, without a kill, when the worker takes part in an encounter or has just been killed.
        """
        with self._state.changed:
            process = self._process
            if self._engaged or self._killed or process is None or not process.is_alive():
                return False
            self._kill(process, "random")
        return True

    def abandon(self) -> None:
        """Kill the worker without a successor; the thread ends."""
        with self._state.changed:
            process, self._killed = self._process, True
        if process is not None and process.is_alive():
            process.kill()

    # --- called in this thread

    def run(self) -> None:
        """Start worker after worker until the run ends."""
        generation = 0
        while not self._state.aborted and not self._serve(generation):
            generation += 1

    def _serve(self, generation: int) -> bool:
        """Start a worker and answer it until it ends. Returns True when the supervisor ended it."""
        is_last_cycle = False
        pipe, process = self._start(generation)
        try:
            while True:
                message = pipe.recv()
                if message.step is None:
                    self._state.event_log.cycle_ended(self.number, message.outcome, message.detail)
                    self._on_cycle_end()
                    self._last_step = "cycle ended"
                    is_last_cycle = self._state.ending
                    pipe.send("end" if is_last_cycle else "go")
                else:
                    self._at_step(process, pipe, message.step)
        except (EOFError, OSError):
            pass  # the worker has ended
        finally:
            pipe.close()
        self._on_cycle_end()
        process.join(_JOIN_SECONDS)
        with self._state.changed:
            if not self._killed and not is_last_cycle:
                self._state.event_log.died(self.number, process.exitcode)
                # no busy loop of failing starts
                self._state.changed.wait(1.0)
        return is_last_cycle

    def _start(self, generation: int) -> "tuple[Connection[Reply, WorkerMessage], ForkServerProcess]":
        supervisor_end, worker_end = _processes.Pipe()
        settings = replace(self._settings, seed=f"{self._settings.seed} {generation}")
        process = _processes.Process(
            target=work, args=(worker_end, settings), name=f"worker {self.number}.{generation}", daemon=True
        )
        with _starting:
            process.start()
        worker_end.close()
        with self._state.changed:
            self._process, self._killed, self._last_step = process, False, "start"
            if self._state.aborted:
                self._killed = True
                process.kill()
        return supervisor_end, process

    def _at_step(self, process: ForkServerProcess, pipe: "Connection[Reply, WorkerMessage]", step: str) -> None:
        self._last_step = step
        self._state.event_log.write("step", worker=self.number, step=step)
        self._wait_for_zombie(step)
        with self._state.changed:
            item = None if self._engaged else self._state.take_due(self.number, step)
            self._engaged = self._engaged or isinstance(item, Pause)
        match item:
            case Kill():
                if item.delay is not None:
                    pipe.send("go")
                    time.sleep(item.delay)
                with self._state.changed:
                    if not self._killed:
                        self._kill(process, item.moment)
            case Pause():
                self._pause_worker(process, pipe, item)
            case None:
                self._delay(_CLAIMED_DELAY_SECONDS if step == "claimed" else _STEP_DELAY_SECONDS)
                pipe.send("go")

    def _delay(self, longest: float) -> None:
        """Sleep at random, mostly not at all and seldom long, so that other workers can run between two steps."""
        seconds = self._rng.choice((0.0, 0.0, 0.0, self._rng.uniform(0, longest / 8), self._rng.uniform(0, longest)))
        with self._state.changed:
            encounter = self._state.encounter
            if self._state.disruptions_over or (encounter is not None and encounter.zombie == self.number):
                return
        time.sleep(seconds)

    def _kill(self, process: ForkServerProcess, moment: str) -> None:
        process.kill()
        self._killed = True
        self._state.event_log.write("killing", worker=self.number, last_step=self._last_step)
        self._state.event_log.killed(self.number, moment)

    # --- pauses and encounters

    def _pause_worker(self, process: ForkServerProcess, pipe: "Connection[Reply, WorkerMessage]", item: Pause) -> None:
        state = self._state
        if item.delay is not None:
            pipe.send("go")
            time.sleep(item.delay)
        os.kill(process.ident or 0, signal.SIGSTOP)
        moment = item.step if item.delay is None else f"just after {item.step}"
        state.event_log.paused(self.number, moment, {"seconds": item.seconds, "until": item.until, "cut": item.cut})
        if item.cut:
            state.cut_lock_holder()
        with state.changed:
            encounter = state.encounter if item.until else None
            if encounter is None:
                state.changed.wait_for(lambda: state.aborted, item.seconds)
            else:
                state.changed.wait_for(lambda: encounter.successor is not None or state.aborted, item.timeout)
                if encounter.successor is None:
                    state.encounter = None
            state.long_pause = state.long_pause and not item.seconds
            # in an encounter it must not be killed before its cycle has ended
            self._engaged = state.encounter is not None and state.encounter is encounter
            os.kill(process.ident or 0, signal.SIGCONT)
            state.event_log.write("resumed", worker=self.number, encounter=self._engaged)
        if item.delay is None:
            pipe.send("go")

    def _wait_for_zombie(self, step: str) -> None:
        """Become the successor of a paused worker that waits for this step, and wait for that worker's end."""
        state = self._state
        with state.changed:
            encounter = state.encounter
            if encounter is None or self._engaged or not encounter.is_open_for(self.number, step):
                return
            encounter.successor = self.number
            # until its cycle ends: killed earlier, it would not show the zombie's effect
            self._engaged = True
            state.event_log.encounters += 1
            state.event_log.write("encounter", successor=self.number, zombie=encounter.zombie, step=step)
            state.changed.notify_all()
            ended = state.changed.wait_for(lambda: encounter.over or state.aborted, _ENCOUNTER_SECONDS)
            state.event_log.write("released", successor=self.number, zombie_had_ended=ended)
            state.encounter = None

    def _on_cycle_end(self) -> None:
        """End this worker's part in an encounter."""
        state = self._state
        with state.changed:
            self._engaged = False
            if state.encounter is not None and state.encounter.zombie == self.number:
                state.encounter.over = True
                state.changed.notify_all()
