"""The reporter as it would be without batches: a post for each event. Only to compare with; see check.py."""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent.parent / "crates/edge/events/reporter"))
import warmroute_reporter


class Unbatched(warmroute_reporter.Reporter):
    def _collect(self):
        with self._mirror_lock:
            for event in self._take_waiting():
                self._keep([event])


def arm():
    warmroute_reporter.Reporter, warmroute_reporter.BATCH_S = Unbatched, 0.001
    warmroute_reporter.arm()


if __name__ == "__main__":
    warmroute_reporter.main(module=__file__)
