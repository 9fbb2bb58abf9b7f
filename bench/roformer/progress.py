"""The progress of a run, in seconds of expected work: a bar on a terminal, else a line every ten seconds."""

import sys
import time

from tqdm import tqdm

LINE_SECONDS = 10.0


class Progress:
    """The finished share of all jobs' costs, and the time left at the mean speed since the start."""

    def __init__(self, costs: dict[str, float]) -> None:
        self.costs, self.fractions, self.num_ended = costs, {}, 0
        self.started = self.printed = time.monotonic()
        self.bar = tqdm(
            total=1.0,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, left {remaining}",
            smoothing=0,  # the mean speed since the start
            disable=not sys.stderr.isatty(),
        )

    def update(self, key: str, fraction: float) -> None:
        """Note the finished fraction of a running job."""
        self.fractions[key] = fraction

    def end(self, key: str) -> None:
        """Note the end of a job, finished or failed."""
        self.fractions[key] = 1.0
        self.num_ended += 1

    def show(self) -> None:
        """Draw the bar, or print a line if the last is LINE_SECONDS old."""
        jobs, share = f"{self.num_ended} of {len(self.costs)} jobs", self.share()
        if not self.bar.disable:
            self.bar.n = share
            self.bar.set_description_str(jobs)  # draws the bar
        elif time.monotonic() - self.printed >= LINE_SECONDS:
            self.printed = time.monotonic()
            self.write(f"{jobs}, {share:.0%}, left {time_left(self.printed - self.started, share)}")

    def write(self, text: str) -> None:
        """Print a message above the bar."""
        self.bar.write(text, file=sys.stderr)
        sys.stderr.flush()

    def share(self) -> float:
        """Return the finished share of all costs, 0 to 1."""
        finished = sum(self.costs[key] * fraction for key, fraction in self.fractions.items())
        return finished / sum(self.costs.values())

    def close(self) -> None:
        self.bar.close()


def time_left(elapsed: float, share: float) -> str:
    """Return the time left, as hours:minutes:seconds, after a share of the work in `elapsed` seconds."""
    return tqdm.format_interval(elapsed * (1 - share) / share) if share else "unknown"
