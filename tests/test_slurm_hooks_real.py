"""How a real SLURM takes the value of `Prolog=` and a word of `SchedulerParameters=`, and that the check says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.slurm_cluster import SlurmCluster, SlurmOptions

from nodevet.agent.slurm.survey import hooks_of

WORD = "NoHold_On_Prolog_Fail"


@pytest.mark.parametrize(
    ("value", "starts"),
    [("{a},{b}", False), ('"{a} --fast"', False), ('"{a},x y"', True), ("{folder}/[ab].sh", True)],
    ids=["a list", "arguments", "a name with both", "a pattern"],
)
def test_a_value_that_the_check_refuses_drains_the_node(tmp_path: Path, value: str, starts: bool) -> None:
    """And one that it takes runs. A job that met it waits and is not held, however the word for that is written."""
    a, b, both, ran = (tmp_path / name for name in ("a.sh", "b.sh", "a.sh,x y", "ran"))
    for path in (a, b, both):
        path.write_text(f"#!/bin/sh\necho {path.name} >>{ran}\n")
        path.chmod(0o755)
    written = value.format(a=a, b=b, folder=tmp_path)
    options = SlurmOptions(nodes=1, gpus=0, prolog=Path(written), scheduler=(WORD,))
    with SlurmCluster(tmp_path / "slurm", options) as slurm:
        shown = (line.split("=", 1) for line in slurm.run("scontrol", "show", "config").splitlines() if "=" in line)
        config = {name.strip(): text.strip() for name, text in shown}
        hook = hooks_of(config, tmp_path, slurm.configuration)["Prolog"]
        assert (hook.named, hook.lacks == "") == (written.strip('"'), starts)
        job = slurm.submit("true")
        if starts:
            slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job is done")
            assert ran.exists()
            return
        slurm.wait(lambda: slurm.node_reason("n1") == "Prolog error", "the node is drained")
        slurm.wait(lambda: slurm.job_state(job) == "PENDING", "the job is queued again")
        assert (slurm.job(job)["Priority"] != "0", ran.exists()) == (True, False)
