"""Initial priorities against the definition, worked out from the whole history in plain Python."""

from types import SimpleNamespace

import numpy as np
import pytest

from sharpwave.agents.dqn import NStepErrors
from sharpwave.agents.protocol import Acted


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_errors_are_those_of_the_definition(n_step):
    rng, lanes, steps, gamma = np.random.default_rng(n_step), 3, 200, 0.9
    q, final_q = rng.normal(size=(steps, lanes, 4)).astype(np.float32), rng.normal(size=(steps, lanes, 4))
    action, reward = rng.integers(0, 4, (steps, lanes)), rng.normal(size=(steps, lanes))
    te, tr = rng.random((steps, lanes)) < 0.08, rng.random((steps, lanes)) < 0.08  # both at once, too
    errors, given = NStepErrors(lanes, n_step, gamma, kept=20, values=lambda final_obs, acted, reward: final_obs), 0
    for t in range(steps):
        acted = Acted(action[t], SimpleNamespace(values=q[t], chosen=action[t]))
        errors.add(acted, reward[t], te[t], tr[t], final_q[t] if tr[t].any() else None)
        assert errors.known == max(0, t + 1 - n_step)
        while given < errors.known:
            for lane in range(lanes):
                total, used = 0.0, 0
                while used < n_step:
                    total += gamma**used * reward[given + used, lane]
                    used += 1
                    if te[given + used - 1, lane] or tr[given + used - 1, lane]:
                        break
                last = given + used - 1
                if te[last, lane]:
                    after = 0.0
                elif tr[last, lane]:
                    after = final_q[last, lane].max()
                else:
                    after = q[last + 1, lane].max()
                expected = total + gamma**used * after - q[given, lane, action[given, lane]]
                np.testing.assert_allclose(errors.of(lane, given, 1), [expected], rtol=1e-5, atol=1e-6)
            given += 1
    assert given == steps - n_step
    np.testing.assert_array_equal(
        errors.of(1, given - 20, 20), [errors.of(1, at, 1)[0] for at in range(given - 20, given)]
    )


def test_errors_of_rescaled_values_by_hand():
    """h(x) = sqrt(x + 1) - 1 + .001 x, so h(3) = 1.003 and h(8) = 2.008: a value of 1.003 stands for 3."""
    errors = NStepErrors(1, 1, 0.5, kept=4, values=lambda final_obs, acted, reward: final_obs, rescale=1e-3)
    no, yes = np.zeros(1, bool), np.ones(1, bool)

    def add(value, reward, truncated, final):
        acted = Acted(np.zeros(1, int), SimpleNamespace(values=np.array([[value, -1.0]]), chosen=np.zeros(1, int)))
        errors.add(acted, np.array([reward]), no, truncated, final)

    add(0.25, 6.5, no, None)
    add(1.003, 8.0 - 1.5, yes, np.array([[1.003, 0.0]]))  # bootstraps from its final observation
    add(0.0, 0.0, no, None)
    np.testing.assert_allclose(errors.of(0, 0, 2), [2.008 - 0.25, 2.008 - 1.003], rtol=1e-6)
