"""Observers that remember, and that raise."""

from tokloom.sdk import Context, NoOptions, RequestStats, StepStats


class Recorder:
    """Keeps everything it is told."""

    def __init__(self, options: NoOptions, context: Context) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []
        self.closed = 0

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def close(self) -> None:
        self.closed += 1


class Raising(Recorder):
    """Raises after remembering."""

    def on_step(self, stats: StepStats) -> None:
        super().on_step(stats)
        raise RuntimeError("observer")

    def on_request(self, stats: RequestStats) -> None:
        super().on_request(stats)
        raise RuntimeError("observer")

    def close(self) -> None:
        raise RuntimeError("observer")
