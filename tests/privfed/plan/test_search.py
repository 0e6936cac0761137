"""Searches by trying give what fits, and nothing where nothing does."""

from lanes import every_case

from privfed.plan.calibration.solving import large_scanned, largest_rate


@every_case("most", [1, 7, 100, 4321])
def test_a_large_count_is_found_whatever_small_ones_do(most):
    fits = range(most // 2 + 1, 3 * most // 4 + 2)
    assert large_scanned(lambda n: n in fits and n <= most, most) == min(fits[-1], most)
    assert large_scanned(lambda n: False, most) == 0
    assert large_scanned(lambda n: True, most) == most


def test_the_largest_rate_is_found_to_four_digits():
    for limit in (1.0, 0.3, 1e-5):
        rate = largest_rate(lambda rate, limit=limit: rate <= limit)
        assert limit * (1 - 2e-4) <= rate <= limit
    assert largest_rate(lambda rate: False) is None
