"""What a code means: the words of the rule that it commonly comes from."""

from __future__ import annotations

import pytest

from nodevet.checks.core.model import Action, FaultClass
from nodevet.checks.engine.explanation import declared_rules


@pytest.mark.parametrize("code", ["device.lost", "device.missing"])
def test_a_code_with_several_causes_is_explained_by_the_first(code: str) -> None:
    """A board may be lost, or not given to a container, by one code: the page of a code tells of the loss."""
    rule = declared_rules()[code]
    assert (rule.action, rule.fault_class) == (Action.REBOOT, FaultClass.HARDWARE)
