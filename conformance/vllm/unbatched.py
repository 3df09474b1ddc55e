"""The reporter as it would be without batches: a post for each event. Only to compare with; see check.py."""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent.parent / "crates/edge/events/reporter"))
import warmroute_reporter


class Unbatched(warmroute_reporter.Reporter):
    def _collect(self):
        with self._lock:
            events, self._waiting, self._waiting_events = self._waiting, [], 0
        for event in events:
            self._keep([event], reset=False)


def arm():
    warmroute_reporter.Reporter, warmroute_reporter.BATCH_S = Unbatched, 0.001
    warmroute_reporter.arm()


if __name__ == "__main__":
    warmroute_reporter.main(module=__file__)
