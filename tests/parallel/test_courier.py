"""Exchanges beside the computing: their order, their errors, and who goes first where there is one core for both."""

import subprocess
import sys

import pytest
import torch

from dragoman.parallel.courier import PATIENT, Courier, niceness

CPU = torch.device("cpu")


def test_work_is_done_in_the_order_it_was_handed_in():
    courier, done = Courier(CPU), []
    futures = [courier.hand_in(lambda number=number: done.append(number)) for number in range(20)]
    for future in futures:
        future.wait()
    assert done == list(range(20))


def test_an_error_is_raised_where_its_result_is_waited_for_and_nothing_else_is_lost():
    courier = Courier(CPU)
    broken, sound = courier.hand_in(lambda: 1 // 0), courier.hand_in(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        broken.wait()
    assert sound.wait() == 7


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a priority of their own on Linux")
@pytest.mark.parametrize("patient", [False, True])
def test_exchanges_that_have_time_let_the_computing_go_first(patient):
    courier = Courier(CPU, patient=patient)
    before = niceness()
    assert courier.hand_in(niceness).wait() == min(19, before + (PATIENT if patient else 0))
    assert niceness() == before, "the computing is as it was"


LEAVES_EARLY = """
import torch
from dragoman.parallel.courier import Courier

torch.set_num_threads(1)
courier, x = Courier(torch.device("cpu")), torch.ones(2500, 2500)
first, _ = courier.hand_in(lambda: x @ x), courier.hand_in(lambda: x @ x)
first.wait()
"""


def test_a_process_that_ends_with_an_exchange_on_its_way_ends_well():
    """Python ends threads where they next want its lock; inside torch that aborts the whole process."""
    done = subprocess.run([sys.executable, "-c", LEAVES_EARLY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
