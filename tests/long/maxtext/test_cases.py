"""Goal: a training that differs from its own run on one device, is shorter than it, or holds no numbers, does not pass."""

import pytest
from cases import TOLERANCE, Step, all_cases, difference

_WANT = [Step(6.0, 2.0, 0.1), Step(5.0, 1.0, 0.1)]


def test_equal_runs_do_not_differ():
    assert difference(list(_WANT), _WANT) == (0, 0)


def test_the_largest_difference_of_any_step_counts():
    got = [Step(6.0, 2.0, 9.0), Step(5.001, 1.01, 9.0)]
    assert difference(got, _WANT) == pytest.approx((2e-4, 1e-2))
    assert min(difference(got, _WANT)) > TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (_WANT[:1], "got 1 steps, expected the 2"),
        ([], "got 0 steps"),
        ([Step(float("nan"), 2.0, 0.1), _WANT[1]], "no finite number"),
    ],
)
def test_what_is_no_result_is_refused(got: list[Step], said: str):
    with pytest.raises(ValueError, match=said):
        difference(got, _WANT)


def test_a_case_is_compared_with_the_same_layers_and_dtype():
    for case in all_cases():
        reference = case.reference
        assert (reference.layers, reference.dtype) == (case.layers, case.dtype)
        words = set(case.arguments("/out", 4)) - set(reference.arguments("/out", 1))
        assert {word.split("=")[0] for word in words} <= {
            "run_name",
            "per_device_batch_size",
            "sparse_matmul",
            "te_moe_block",
            "te_gmm_quantization",
            "custom_mesh_and_rule",
            "packing",
            "context_parallel_load_balance",
            *(f"ici_{axis}_parallelism" for axis in ("expert", "fsdp", "tensor", "context")),
        }, words
