"""Lines on which health depends, each broken on purpose: the named test must fail.

A mutant is a copy of the package with one line changed. That the unchanged copy passes the same tests shows that it
is the change which kills.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import nodevet.agent
import nodevet.checks
import nodevet.exporters

PACKAGES = (nodevet.agent, nodevet.checks, nodevet.exporters)
TIMEOUT_SECONDS = 120


class Mutant(NamedTuple):
    """One line changed, and the test that must notice."""

    name: str
    file: str
    old: str
    new: str
    killer: str


EPISODES = "checks/episodes.py"
ENGINE = "agent/engine.py"
GUARD = "agent/load/guard.py"
MODES = "checks/modes.py"
RULES = "exporters/slurm_rules.py"
WRITER = "agent/slurm/writer.py"

MUTANTS = (
    Mutant(
        "a stale page keeps its verdict",
        "exporters/page/hero.py",
        "    state = State.UNKNOWN.value if stale else verdict.state.value",
        "    state = verdict.state.value",
        "test_status_page.py::test_a_stale_page_takes_its_verdict_back",
    ),
    Mutant(
        "a name of hardware is markup",
        "exporters/page/markup.py",
        "child if isinstance(child, Html) else escape(child)",
        "str(child)",
        "test_status_page.py::test_hostile_names_are_shown_as_text",
    ),
    Mutant(
        "an observed fault closes the gate",
        MODES,
        "        and snapshot.modes.of(episode.check).rank >= mode.rank\n",
        "",
        "test_modes.py::test_the_lower_of_both_modes_counts",
    ),
    Mutant(
        "an acknowledged fault closes the gate",
        MODES,
        "        and episode.state is EpisodeState.OPEN\n",
        "",
        "test_modes.py::test_what_is_no_confirmed_fault_of_a_real_node_reaches_nothing",
    ),
    Mutant(
        "a measured fault drains",
        MODES,
        "        and episode.finding.hard\n",
        "",
        "test_modes.py::test_a_measured_fault_reaches_nothing_in_any_mode",
    ),
    Mutant(
        "an answer without a state is a node",
        RULES,
        '        raise OutputError(f"node {name} has no State=")',
        "        return NodeState(name, frozenset({'IDLE'}))",
        "test_slurm_rules.py::test_what_is_no_answer_is_refused",
    ),
    Mutant(
        "the answer of another node is ours",
        RULES,
        "    if [node.name for node in found] != [name]:",
        "    if not found:",
        "test_slurm_rules.py::test_what_is_no_answer_is_refused",
    ),
    Mutant(
        "what begins like ours is ours",
        RULES,
        "    return _meaning(reason, prefix) is not None\n",
        "    return reason.startswith(prefix)\n",
        "test_slurm_rules.py::test_what_a_person_wrote_behind_our_prefix_is_theirs",
    ),
    Mutant(
        "a state that nobody knows is no obstacle",
        RULES,
        '_words().get(word, "unknown")',
        '_words().get(word, "serves")',
        "test_slurm_rules.py::test_nhc_82_a_state_that_is_not_known_is_left_alone",
    ),
    Mutant(
        "a resume is fought",
        RULES,
        "            return Decision(Step.ACKNOWLEDGE, kept)\n",
        "            return Decision(Step.DRAIN, kept, reason_text(due, prefix))\n",
        "test_slurm_rules.py::test_what_follows",
    ),
    Mutant(
        "a resume acknowledges what came after it",
        RULES,
        "        told = tuple(known for known in memory.known if any(map(known.covers, due)))\n",
        "        told = _known(due)\n",
        "test_slurm_rules.py::test_a_resume_acknowledges_what_was_known_and_the_rest_drains_again",
    ),
    Mutant(
        "the limit lets one more through",
        RULES,
        "        return self.drained < self.allowed\n",
        "        return self.drained <= self.allowed\n",
        "test_slurm_rules.py::test_no_more_than_the_limit_is_drained",
    ),
    Mutant(
        "everybody writes at once",
        RULES,
        "    return (wall_seconds - found.place % turns * TURN_SECONDS) % (turns * TURN_SECONDS)\n",
        "    return wall_seconds % (turns * TURN_SECONDS)\n",
        "test_slurm_rules.py::test_nodes_that_fail_together_write_in_turns",
    ),
    Mutant(
        "a node whose gate closed waits for its turn",
        WRITER,
        "if decision.step is Step.DRAIN and not self._gate_closed else None\n",
        "if decision.step is Step.DRAIN else None\n",
        "test_slurm_writer.py::test_a_node_whose_gate_closed_waits_for_no_turn_and_no_limit",
    ),
    Mutant(
        "no second look before the write",
        WRITER,
        "        unchanged = decide(faults, self._read(), self._memory, self._settings.reason_prefix) == decision\n",
        "        unchanged = bool(self._read())\n",
        "test_slurm_writer.py::test_a_person_who_is_faster_wins",
    ),
    Mutant(
        "observe acknowledges",
        WRITER,
        'self._acknowledged(faults) if self._settings.writer == "drain" else ()',
        "self._acknowledged(faults)",
        "test_slurm_writer.py::test_observe_decides_and_does_nothing",
    ),
    Mutant(
        "nothing passed is ok",
        EPISODES,
        "    if not times and not (partial and passed):\n",
        "    if False:\n",
        "test_episodes.py::test_verdict_of_a_device_that_nothing_passed_is_unknown",
    ),
    Mutant(
        "one sample counts twice",
        EPISODES,
        "    return finding.evidence_time == episode.looked and",
        "    return False and",
        "test_episodes.py::test_one_sample_is_one_look",
    ),
    Mutant(
        "one good sample clears",
        EPISODES,
        "    if good < needed:",
        "    if good < 1:",
        "test_episodes.py::test_good_samples_end_only_what_the_table_lets_them_end",
    ),
    Mutant(
        "one bad look confirms",
        EPISODES,
        "sum(recent) >= finding.needed",
        "sum(recent) >= 1",
        "test_episodes.py::test_measured_fault_needs_three_of_five_looks",
    ),
    Mutant(
        "re-test without the reboot",
        EPISODES,
        "        if same_boot and episode.finding.action in row.retest_needs_reboot:",
        "        if False:",
        "test_episodes.py::test_retest_counts_only_after_the_reboot_that_the_fault_asks_for",
    ),
    Mutant(
        "re-test with wrong results",
        EPISODES,
        '        and result.metric("mismatches") == 0\n',
        "",
        "test_episodes.py::test_only_a_real_retest_disproves",
    ),
    Mutant(
        "settled occurrences open again",
        EPISODES,
        "if finding.occurrence is None or settled.get(key) != finding.occurrence:",
        "if True:",
        "test_episodes.py::test_settled_occurrence_does_not_open_its_episode_again",
    ),
    Mutant(
        "being listed is health",
        EPISODES,
        "    if not times and not (partial and passed):\n",
        "    if not passed:\n",
        "test_engine.py::test_device_that_is_listed_and_was_never_read_is_not_ok",
    ),
    Mutant(
        "a re-test of an earlier boot counts",
        EPISODES,
        "if same_boot else this_boot:",
        "if same_boot else True:",
        "test_episodes.py::test_retest_of_an_earlier_boot_disproves_nothing_whatever_the_clock_says",
    ),
    Mutant(
        "a neighbour replaces what fell out",
        EPISODES,
        " and device.serial and device.id not in evidence.moved:",
        " and device.serial:",
        "test_engine.py::test_board_that_fell_out_is_missed_although_its_address_went_to_its_neighbour",
    ),
    Mutant(
        "a fault that nothing lists is forgotten",
        ENGINE,
        "        if unlisted.episodes:\n",
        "        if unlisted.episodes and device == NODE:\n",
        "test_engine.py::test_fault_of_a_device_that_nothing_lists_still_counts",
    ),
    Mutant(
        "a stopped run excuses a wrong result",
        ENGINE,
        '        if not (before is not None and before.metric("mismatches") and unproven):\n',
        "        if True:\n",
        "test_engine.py::test_stopped_run_does_not_take_the_place_of_a_wrong_result",
    ),
    Mutant(
        "old readings are shown",
        "checks/view.py",
        " if stale else entry",
        " if False else entry",
        "test_meta_checks.py::test_old_sample_never_passes",
    ),
    Mutant(
        "another boot is fresh",
        "checks/view.py",
        "        return age is None or (",
        "        return age is not None and (",
        "test_health_freshness.py::test_sample_of_another_boot_is_not_fresh",
    ),
    Mutant(
        "unreadable is well",
        "checks/judging.py",
        "Outcome.SKIPPED if unsupported else Outcome.UNMEASURED",
        "Outcome.PASS",
        "test_meta_checks.py::test_without_any_reading_nothing_passes",
    ),
    Mutant(
        "old growth is judged",
        "checks/judging.py",
        "growth is not None and growth.until == taken",
        "growth is not None",
        "test_health_power_pcie_links.py::test_growth_that_ended_with_an_earlier_sample_is_not_judged_again",
    ),
    Mutant(
        "zero is absence",
        "checks/limits.py",
        "        if value is not None:",
        "        if value:",
        "test_limits.py::test_zero_is_a_value_and_not_absence",
    ),
    Mutant(
        "a list not had proves absence",
        "checks/health/inventory.py",
        "    if not _enumerated(view, device.backend):",
        "    if False:",
        "test_health_inventory.py::test_list_that_could_not_be_had_proves_no_absence",
    ),
    Mutant(
        "harmless events are health",
        "checks/health/kernel_log.py",
        "policy.outcome if is_fault else Outcome.SKIPPED",
        "policy.outcome",
        "test_health_kernel_log.py::test_no_event_passes",
    ),
    Mutant(
        "a power cap is a fault",
        "checks/health/throttle.py",
        "active and flag.part.name not in NORMAL",
        "active",
        "test_health_throttle.py::test_each_of_the_512_masks_is_judged_bit_by_bit",
    ),
    Mutant(
        "a counter that fell has grown",
        ENGINE,
        "if seconds is not None and seconds > 0 and value >= before.value:",
        "if seconds is not None and seconds > 0:",
        "test_engine.py::test_counter_that_fell_began_anew",
    ),
    Mutant(
        "growth over a gap is a burst",
        ENGINE,
        "since = before.time if before.interrupted else last",
        "since = last",
        "test_engine.py::test_growth_over_a_gap_is_no_burst",
    ),
    Mutant(
        "a crashing check is silent",
        ENGINE,
        "            findings = findings or (_nothing_found(armed.check, error),)\n",
        "",
        "test_engine.py::test_crashing_check_costs_only_itself",
    ),
    Mutant(
        "a restart forgets",
        ENGINE,
        '            self._ledger = decode(memory["ledger"], type=Ledger)',
        '            decode(memory["ledger"], type=Ledger)',
        "test_episodes_machine.py::test_open_fault_survives_a_restart_without_a_sample",
    ),
    Mutant(
        "a load begins beside a claim",
        GUARD,
        "        else:\n            reason = self.claims.look().reason\n",
        "        else:\n            reason = None\n",
        "test_slurm_protocol.py::test_a_probe_is_gone_before_the_first_process_of_a_job[claim first]",
    ),
    Mutant(
        "a load begins before it is told",
        GUARD,
        "written.generation <= self._generation or not written.agent.probing",
        "False",
        "test_claims.py::test_a_load_starts_after_its_announcement_is_on_disk",
    ),
    Mutant(
        "a load goes on beside a claim",
        "agent/load/prober.py",
        '            run.stop(f"gives way: {claimed}")\n',
        "            pass\n",
        "test_slurm_protocol.py::test_a_probe_is_gone_before_the_first_process_of_a_job[probing first]",
    ),
    Mutant(
        "idle beside a process of a load",
        GUARD,
        "            self._left_over = self.has_processes()\n",
        "            self._left_over = False\n",
        "test_claims.py::test_a_process_of_a_load_keeps_the_node_probing",
    ),
    Mutant(
        "what a second reader says of a board counts",
        ENGINE,
        "        if (sample.backend, sample.device) in self._left_out:\n            return\n",
        "",
        "test_listed_twice.py::test_a_board_that_a_command_lists_too_is_shown_once_and_told[uuid]",
    ),
    Mutant(
        "the last of two values of one key wins",
        "checks/readings.py",
        "                if key in seen:\n",
        "                if key in seen and key == place:\n",
        "test_readings.py::test_a_key_that_stands_twice_is_refused[value]",
    ),
    Mutant(
        "PROCHOT is a warning",
        "checks/health/throttle.py",
        '"power_brake", "processor_hot"})',
        '"power_brake"})',
        "test_scenarios.py::test_fault_gives_state_device_code_class_and_action[amd: PROCHOT]",
    ),
    Mutant(
        "deferred errors are forgotten",
        "checks/health/memory_errors.py",
        "DEFERRED.judge(look, look.number > 0,",
        "DEFERRED.judge(look, look.number > 1,",
        "test_scenarios.py::test_fault_gives_state_device_code_class_and_action[amd: deferred memory error]",
    ),
    Mutant(
        "one bad page too many",
        "checks/health/bad_pages.py",
        'limit = Limit(">=", reported.number',
        'limit = Limit(">", reported.number',
        "test_scenarios.py::test_fault_gives_state_device_code_class_and_action[amd: as many bad pages as allowed]",
    ),
    Mutant(
        "a sum leaves out what could not be read",
        "exporters/quantity_metrics.py",
        "            sums[device] = None\n",
        "            sums[device] = so_far\n",
        "test_exporter_prometheus.py::test_links_are_summed_per_device",
    ),
    Mutant(
        "the last reading is shown for ever",
        "exporters/quantity_metrics.py",
        "        if age is None or age > max(",
        "        if age is None or 0 > max(",
        "test_exporter_prometheus.py::test_old_readings_are_not_the_present",
    ),
    Mutant(
        "a burn-in that verified nothing passed",
        "exporters/result_metrics.py",
        "is_passed_retest(result) for result in newest",
        "result.state is ResultState.FINISHED for result in newest",
        "test_exporter_prometheus.py::test_only_a_burn_in_that_proved_something_passed",
    ),
    Mutant(
        "of two limits the lax one is shown",
        "exporters/node_metrics.py",
        "choose = min if",
        "choose = max if",
        "test_exporter_prometheus.py::test_of_two_limits_the_one_is_shown_that_is_broken_first",
    ),
)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package outside of the tree."""
    home = tmp_path_factory.mktemp("pristine")
    for package in PACKAGES:
        source = Path(next(iter(package.__path__)))
        shutil.copytree(source, home / "nodevet" / package.__name__.rsplit(".", 1)[-1])
    return home


def run(home: Path, repository: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run *tests* of *repository* against the package below *home*."""
    # Half of the time would go into the import of a plugin that reports what hypothesis found.
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, f"--basetemp={home / 'tmp'}"]
    return subprocess.run(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_unchanged_copy_passes(pristine: Path, repository: Path) -> None:
    """And it is the copy that is tested, not the tree."""
    where = subprocess.run(
        [sys.executable, "-c", "import nodevet.checks.view, nodevet.agent; print(nodevet.checks.view.__file__)"],
        env={**os.environ, "PYTHONPATH": str(pristine)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(pristine)
    done = run(pristine, repository, *(mutant.killer for mutant in MUTANTS))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant: Mutant, pristine: Path, repository: Path, tmp_path: Path) -> None:
    """The named test fails, and fails because of an assertion or error in a test, not for want of one."""
    shutil.copytree(pristine / "nodevet", tmp_path / "nodevet")
    victim = tmp_path / "nodevet" / mutant.file
    text = victim.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times"
    victim.write_text(text.replace(mutant.old, mutant.new))
    done = run(tmp_path, repository, mutant.killer)
    assert done.returncode == 1, f"{mutant.killer} did not notice\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert " failed" in done.stdout
