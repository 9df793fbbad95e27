"""Goal: the table of faults holds what tests heard, without what differs from run to run, and a difference is a complaint."""

import pathlib

import fault_table

_RESULT = """<testsuites><testsuite><testcase><properties>
<property name="told 1" value="a rank is killed&#x0A;all other ranks&#x0A;{report}"/>
<property name="another" value="is left alone"/>
</properties></testcase></testsuite></testsuites>"""


def _heard(tmp_path: pathlib.Path, report: str) -> fault_table.Heard:
    path = tmp_path / "test.xml"
    path.write_text(_RESULT.format(report=report), encoding="utf-8")
    return fault_table.heard_in([path])


def test_what_differs_from_run_to_run_is_left_out(tmp_path: pathlib.Path) -> None:
    heard = [
        _heard(
            tmp_path,
            f"[epd:UNAVAILABLE] group=g epoch={n} rank={n} phase=announce: rank=2 host=h{n} pid={n} "
            f"phase=gone after {n}.5s at 10.0.0.{n}:70{n}0; start it again",
        )
        for n in (1, 2)
    ]
    assert heard[0] == heard[1]
    text = "rank=2 host=H pid=P phase=gone after T at A; start it again"
    assert heard[0] == {("a rank is killed", "all other ranks"): {("UNAVAILABLE", text)}}


def test_a_table_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    heard = _heard(tmp_path, "[epd:ABORTED] group=g: a|b is over")
    assert fault_table.rows_of(fault_table.table_of(heard)) == heard


def test_what_is_new_and_what_nobody_tells_any_more_are_complaints(tmp_path: pathlib.Path) -> None:
    heard = _heard(tmp_path, "[epd:ABORTED] group=g: it is over")
    other = {("a fault", "all ranks"): {("INTERNAL", "text")}}
    assert fault_table.complaints(heard, heard) == []
    assert len(fault_table.complaints(heard, other)) == 2


def test_what_is_no_error_of_epd_is_a_complaint(tmp_path: pathlib.Path) -> None:
    heard = _heard(tmp_path, "the rank did not finish")
    table = {key: {("ABORTED", "text")} for key in heard}
    (complaint,) = fault_table.complaints(heard, table)
    assert complaint.endswith("[no error of epd] the rank did not finish")
