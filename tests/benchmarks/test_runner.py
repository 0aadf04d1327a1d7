"""Figures and processes that all benchmarks share."""

import os
import sys

import numpy as np
import pytest
import runner


def test_every_turn_begins_with_another_contender():
    assert [runner.in_turn("abc", turn) for turn in (0, 1, 5)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert runner.in_turn([], 3) == []


def test_a_slope_and_its_error_are_those_of_least_squares():
    x, y = np.arange(6.0), np.array([1.0, 3.0, 2.0, 5.0, 4.0, 6.0])
    (steep, _), ((variance, _), _) = np.polyfit(x, y, 1, cov=True)
    assert runner.slope(x, y) == pytest.approx((steep, variance**0.5))
    assert runner.slope([0, 1, 2], [1, 1, 1]) == (0, 0)
    assert all(np.isnan(runner.slope([0, 1], [1, 2])))


def test_groups_have_an_offset_each_and_one_slope():
    x = np.tile(np.arange(4.0), 2)
    y = 2 * x + np.repeat([0.0, 100.0], 4)
    assert runner.slope(x, y, np.repeat([0, 1], 4)) == pytest.approx((2, 0))
    assert runner.slope(x, y)[1] > 10  # one group: the offsets are noise


def test_quartiles_of_one_value():
    assert runner.quartiles([7.0]) == (7, 7, 7)
    assert runner.quartiles([1.0, 2.0, 3.0]) == (1, 2, 3)


def test_a_program_tells_its_result_by_its_last_line(capfd):
    assert runner.last_line([sys.executable, "-c", "print('noise'); print('[1]')"], "one") == [1]
    assert runner.last_line([sys.executable, "-c", "raise SystemExit('no such library')"], "other") is None
    assert capfd.readouterr().err == "other: no such library\n"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts so")
def test_memory_and_processor_time_of_processes():
    assert runner.memory() > 1 << 20 and runner.memory(os.getpid(), "VmHWM") >= runner.memory(part="VmRSS") > 0
    assert runner.processor_s(os.getpid()) > 0
    assert runner.memory(1 << 30) == runner.processor_s(1 << 30) == 0
