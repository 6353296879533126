"""The calls of users that brought their reader down: which are left out, and for how long."""

from __future__ import annotations

from nodevet.agent.readers.calls_of_users import LEFT_OUT_SECONDS, LeftOut

CALL = "amdsmi_get_gpu_process_list"


def test_a_call_that_was_left_out_is_made_again_when_its_time_has_come() -> None:
    """Their program may have ended; until then the boards are read without that call."""
    left_out = LeftOut()
    assert left_out.note(f"{CALL} of GPU 3", 100.0)
    assert (left_out.names, left_out.next_deadline) == ((CALL,), 100.0 + LEFT_OUT_SECONDS)
    assert not left_out.try_again(99.0 + LEFT_OUT_SECONDS)
    assert left_out.names == (CALL,)
    assert left_out.try_again(100.0 + LEFT_OUT_SECONDS)
    assert not left_out.names
    assert left_out.next_deadline is None


def test_a_call_that_reads_a_board_alone_is_never_left_out() -> None:
    """How it goes is up to the driver."""
    left_out = LeftOut()
    assert not left_out.note("amdsmi_get_temp_metric of GPU 3", 100.0)
    assert not left_out.names
