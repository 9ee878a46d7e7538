"""What the launcher does after ranks have ended: start again, sooner or later, or tell."""

import signal
from contextlib import nullcontext

import pytest

from dragoman import runs
from dragoman.parallel import cluster, hosts, launch
from dragoman.parallel.ranks import Outcome


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Attempts that end as they are told to, with signals that came meanwhile; returns the code, attempts and pauses."""

    def run(*outcomes, signals=(), restarts=5):
        attempts, pauses = [], []

        def once(processes, arguments, attempt, received):
            attempts.append(attempt)
            received.extend(signals)
            return outcomes[min(attempt, len(outcomes) - 1)]

        monkeypatch.setattr(launch, "launch_once", once)
        monkeypatch.setattr(launch, "pause", lambda failures, received: pauses.append(failures))
        code = launch.launch(2, ["train"], runs.RunFolder(tmp_path), restarts=restarts)
        return code, len(attempts), pauses

    return run


STOPPED = 128 + signal.SIGTERM
FULL = Outcome(2, "dragoman: the last checkpoint could not be written: no room", 0, "failed")


def test_a_stop_without_its_checkpoint_is_told_and_is_no_good_stop(launched, capsys):
    assert launched(FULL, signals=[signal.SIGTERM]) == (2, 1, [])
    assert "last checkpoint could not be written" in capsys.readouterr().err
    assert launched(Outcome(1, "dragoman: rank 1 was killed"), signals=[signal.SIGTERM])[:2] == (1, 1)


@pytest.mark.parametrize(
    ("outcome", "signals"),
    [(Outcome(STOPPED, "ended with code 143"), 1), (Outcome(), 1), (Outcome(1, "was killed"), 2)],
)
def test_a_good_stop_has_the_code_of_its_signal_and_nothing_to_say(launched, capsys, outcome, signals):
    assert launched(outcome, signals=[signal.SIGTERM] * signals) == (STOPPED, 1, [])
    assert capsys.readouterr().err == ""


def test_what_fails_time_and_again_is_tried_later_and_later(launched):
    failed, killed = Outcome(1, "ESTALE", kind="failed"), Outcome(1, "was killed", kind="killed")
    assert launched(failed, failed, failed, killed, failed, Outcome()) == (0, 6, [1, 2, 3, 0, 1])


def test_so_over_hosts(monkeypatch):
    kinds, pauses = ["failed", "failed", "killed", "failed", ""], []

    class Fleet(nullcontext):
        def __init__(self, *_, **__):
            super().__init__(self)

        def attempt(self, arguments, environment, attempt):
            return Outcome(int(bool(kinds[attempt])), "", kind=kinds[attempt])

        def note(self, fault):
            pass

    monkeypatch.setattr(hosts, "Fleet", Fleet)
    monkeypatch.setattr(launch, "pause", lambda failures, received: pauses.append(failures))
    assert hosts.launch_on_hosts(None, None, ["train"], {}, 5) == 0
    assert pauses == [1, 2, 0, 1]


def test_so_on_ray():
    desk = cluster.Desk()
    for attempt, kinds in enumerate((["failed"], ["failed", "failed"], ["failed", "killed"], ["failed"])):
        for kind in kinds:
            desk.fail(attempt, 1, {"kind": kind})
    assert [desk.failures(attempt) for attempt in range(6)] == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 0), (2, 4), (3, 8), (9, 60)])
def test_pauses_are_short_at_first_and_never_endless(monkeypatch, failures, seconds):
    now = [0.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(launch.time, "sleep", lambda spent: now.__setitem__(0, now[0] + spent))
    launch.pause(failures, lambda: [])
    assert now[0] == pytest.approx(seconds, abs=0.1)
    before = now[0]
    launch.pause(failures, lambda: [signal.SIGTERM])
    assert now[0] == before
