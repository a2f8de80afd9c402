"""EngineCore: one step loop over sequences, token ids in and out.

One step at depth 0 (at depth 1 the oldest launch is committed while the newest runs):

    inbox -> tiers.poll -> policy.order -> drafts -> lookup, admit, chunk -> allocate -> freeze plan
                                                                                            |
          runner (stream order):  ends, begins, table deltas, page ops, forward, sample, match, move
                                                                                            |
    drop stale -> advance -> fork -> append, stop -> truncate -> publish -> slide -> finish -> ingest -> observe
"""

import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping

from tokloom.core.commit import Committer
from tokloom.core.composition import Composition
from tokloom.core.device import Handle
from tokloom.core.events import OutputEvent
from tokloom.core.logs import get_logger
from tokloom.core.numbers import Numbers
from tokloom.core.plan import StepPlan
from tokloom.core.planner import Planner
from tokloom.core.pools import PagePools
from tokloom.core.requests import admissible
from tokloom.core.runner import PagesLost, Runner, StepResult
from tokloom.core.sequence import Sequence
from tokloom.core.shown import shown
from tokloom.core.state import EngineState
from tokloom.sdk import (
    AdaptedModel,
    CapacityError,
    CheckpointError,
    ClosedError,
    LoadedModel,
    PluginFault,
    Request,
    RequestError,
    SchedEvent,
    TokloomError,
)

_LOG = get_logger("engine")
#: how long a step without anything to launch waits for a tier before it returns, seconds
NAP = 0.005


def _no_progress(done: int, total: int, what: str) -> None:
    """Reports nothing."""


class EngineCore:
    """One engine. `add` and `abort` may be called from any thread; everything else belongs to one loop thread.

    Args:
        composition: from `tokloom.core.compose.compose`.
        progress: told how far weight loading is.
        poison_pools: fill KV memory with NaN first; for tests.

    Attributes:
        adapters: names that callers use -> digests, as `Scope.adapter` has them.
    """

    def __init__(
        self,
        composition: Composition,
        *,
        progress: Callable[[int, int, str], None] = _no_progress,
        poison_pools: bool = False,
    ) -> None:
        self.composition = composition
        self._context = composition.context
        self._now = composition.context.now
        device = composition.device
        model = composition.model.load(composition.weights.plugin, device.info.name, progress)
        _load_adapters(composition, model)
        self.adapters: Mapping[str, str] = {name: entry.info.digest for name, entry in composition.adapters.items()}
        self.pools = PagePools(composition.layout, device, composition.codec.plugin, poison=poison_pools)
        composition.context.bind_pages(self.pools)
        self.runner = Runner(composition, model, self.pools)
        self.state = EngineState(composition, self.runner, self._now)
        self._planner = Planner(self.state)
        self._committer = Committer(self.state, self._planner.controller)
        self._in_flight: deque[tuple[StepPlan, Handle[StepResult], float, float]] = deque()
        self._lock = threading.Lock()
        self._inbox: list[tuple[Request, float]] = []
        self._aborts: list[str] = []
        self._known: set[str] = set()
        self._seeded = 0
        self._audited = True
        self._audit_after = 0.0
        self._closed = False
        self._broken: PluginFault | None = None

    # -- any thread ------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError if it is invalid and CapacityError if the queue is full; nothing is kept
        in either case. A request that can never fit the pools ends with a CapacityError in its first event.
        """
        try:
            self._queue(request)
        except TokloomError as error:
            with self._lock:
                self.state.rejected[error.code] = self.state.rejected.get(error.code, 0) + 1
            name = getattr(request, "request_id", None)  # whatever was given
            name = name[:200] if isinstance(name, str) else shown(name)
            _LOG.info("rejected", request_id=name, code=error.code, reason=error.message)
            raise
        _LOG.debug("added", request_id=request.request_id, prompt_tokens=len(request.prompt_ids))
        self._context.wake()

    def _queue(self, request: Request) -> None:
        request = admissible(request, self.composition)
        with self._lock:
            if self._closed:
                raise ClosedError("the engine is closed", subject=f"request {request.request_id!r}")
            if request.request_id in self._known:
                raise RequestError(
                    "a request with this id is live",
                    subject=f"request {request.request_id!r}",
                    remedy="Use a fresh request_id",
                )
            waiting = len(self._inbox) + len(self.state.waiting)
            limit = self.composition.settings.max_waiting
            if waiting >= limit:
                raise CapacityError(
                    f"{waiting} sequences are waiting and the limit is {limit}",
                    subject=f"request {request.request_id!r}",
                    remedy="Retry later, or raise engine.max_waiting",
                )
            self._known.add(request.request_id)
            self._inbox.append((request, self._now()))

    def abort(self, request_id: str) -> bool:
        """Ask for the end of all sequences of a request; False if it is not live. Their last events say `abort`."""
        with self._lock:
            if request_id not in self._known:
                return False
            self._aborts.append(request_id)
        self._context.wake()
        return True

    def wait(self, timeout: float) -> None:
        """Sleep until `add`, `abort`, `wake` or a plugin wakes the engine, at most `timeout` seconds."""
        self._context.wait(timeout)

    def wake(self) -> None:
        """End a `wait`, the one that runs or else the next one. From any thread."""
        self._context.wake()

    # -- loop thread -----------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do: live sequences, launches in flight, transfers, pending operations."""
        state = self.state
        return bool(
            self._inbox
            or self._aborts
            or state.live
            or state.events
            or self._in_flight
            or state.tiers.active
            or state.ends
            or state.allocator.pending_ops()
        )

    def numbers(self) -> Numbers:
        """What was counted since the start, and what is held now. Between steps."""
        return self.state.numbers()

    def stop(self, request_id: str, child: int) -> None:
        """End one sequence as if it had met a stop id: for callers that look for stop strings. Loop thread only.

        The sequence's last event, with finish reason `stop`, comes with the next `step`.
        """
        seq = self.state.requests.get(request_id, {}).get(child)
        if seq is not None:
            self.state.finish(seq, "stop")

    def step(self) -> list[OutputEvent]:
        """Do one step of work; may return nothing while a tier is loading.

        Raises PluginFault when an allocator breaks, or anything else that is not shielded: who owns which page is not
        known then, and every later call raises it again.
        """
        if self._broken is not None:
            raise self._broken
        try:
            self._step()
        except PluginFault as fault:
            self._broken = fault
            raise
        except Exception as error:
            self._broken = PluginFault(
                f"the step loop cannot go on: {type(error).__name__}: {error}",
                subject=self.composition.allocator.id,
                remedy="Report it with its traceback, to the authors of the plugin if one stands at the end of it",
            )
            raise self._broken from error
        events = list(self.state.events.values())
        self.state.events.clear()
        for event in events:
            if event.finish_reason is not None and event.request_id not in self.state.requests:
                with self._lock:
                    self._known.discard(event.request_id)
                    # an abort that came too late must not meet the next request of this name
                    self._aborts = [name for name in self._aborts if name != event.request_id]
        return events

    def _step(self) -> None:
        self._take_inbox()
        self._expire()
        self.state.tiers.settle(self.state.settled)
        for seq, tokens, complete in self.state.tiers.poll():
            self._committer.loaded(seq, tokens, complete)
        depth = self.composition.settings.depth
        started = self._now()
        plan = self._planner.plan(len(self._in_flight))
        if plan is not None:
            self._audited = False
            handle = self.runner.launch(plan)
            self._in_flight.append((plan, handle, started, self._now()))
        if self._in_flight and (plan is None or len(self._in_flight) > depth):
            self._commit_oldest()
        elif plan is None:
            self._idle()

    def _commit_oldest(self) -> None:
        plan, handle, started, launched = self._in_flight.popleft()
        try:
            result = handle.result()
        except Exception as error:
            cause = (
                error.__cause__ if isinstance(error, PagesLost) and isinstance(error.__cause__, Exception) else error
            )
            self.state.faults.record("runner", f"step {plan.step}", cause)
            self._committer.fail(plan, error)
            return
        self._committer.commit(plan, result, started, launched)

    def _idle(self) -> None:
        """Nothing to launch, nothing in flight."""
        state = self.state
        if state.live or state.tiers.active:
            if not state.events:
                self._context.wait(NAP)
            return
        if state.ends:
            self._flush_rows()
        if not self._audited and self._now() >= self._audit_after:
            begun = self._now()
            state.allocator.audit()
            self._audited = True
            self._audit_after = self._now() + 20 * (self._now() - begun)

    def _flush_rows(self) -> None:
        """Let the runner forget sequences that ended after the last plan."""
        state = self.state
        state.launched += 1
        ops = state.allocator.drain(state.launched)
        plan = StepPlan(step=state.launched, spans=(), ends=tuple(state.ends), ops=ops)
        state.ends, state.deltas = [], []
        now = self._now()
        self._in_flight.append((plan, self.runner.launch(plan), now, now))
        self._commit_oldest()

    def _take_inbox(self) -> None:
        if not self._inbox and not self._aborts:
            return
        with self._lock:
            fresh, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, []
        for request, arrival in fresh:
            seed = request.sampling.seed
            if seed is None:
                seed = self._fresh_seed()
            seq = self.state.create(request, 0, list(request.prompt_ids), arrival, seed)
            self.state.waiting[seq.seq_id] = seq
            self.state.policy.observe(SchedEvent(kind="arrived", at=arrival, seq_id=seq.seq_id))
        for request_id in aborts:
            for seq in list(self.state.requests.get(request_id, {}).values()):
                self.state.finish(seq, "abort")

    def _fresh_seed(self) -> int:
        base = self.composition.settings.seed
        if base is None:
            return secrets.randbits(62)
        self._seeded += 1
        return (base * 1_000_003 + self._seeded) & ((1 << 62) - 1)

    def _expire(self) -> None:
        now = self._now()
        expired: list[Sequence] = []
        for seq in self.state.live.values():
            deadline = seq.request.objectives.deadline
            if deadline is not None and now - seq.arrival > deadline:
                expired.append(seq)
        for seq in expired:
            self.state.finish(seq, "deadline")

    def close(self) -> None:
        """End every sequence (events are dropped), close plugins, free memory. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        while self._in_flight:
            try:
                self._in_flight.popleft()[1].result()
            except Exception as error:
                self.state.faults.record("runner", "close", error)
        for seq in list(self.state.live.values()):
            self.state.finish(seq, "abort")
        self.state.events.clear()
        self.state.tiers.close()
        self.runner.close()
        for part in self.composition.observers:
            try:
                part.plugin.close()
            except Exception as error:
                self.state.faults.record(part.id, "close", error)
        self._context.close()


def _load_adapters(composition: Composition, model: LoadedModel) -> None:
    """Each digest once, whatever its names."""
    adapted: AdaptedModel = model  # type: ignore[assignment]  # capability `adapters`
    for path, info in {entry.info.digest: (entry.path, entry.info) for entry in composition.adapters.values()}.values():
        if adapted.load_adapter(path).digest != info.digest:
            raise CheckpointError(
                "has changed since it was composed", subject=str(path), remedy="Start again when it is complete"
            )
