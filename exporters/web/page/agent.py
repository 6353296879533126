"""The agent's own state: who reads, which checks ran, and what it has to say of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodevet.checks.core.model import AgentInfo, CheckRun, Outcome, ReaderState, ReaderStatus, Snapshot
from nodevet.checks.engine.modes import closing
from nodevet.exporters.format import age, duration, moment, words

from .markup import Html, element
from .shapes import badge

__all__ = ["agent_section"]

_OUTCOMES = (Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.UNMEASURED, Outcome.SKIPPED)
_QUIET = frozenset({ReaderState.ABSENT, ReaderState.STARTING, ReaderState.RELEASED, ReaderState.STOPPED})


def agent_section(snapshot: Snapshot) -> Html:
    """Return the section of the agent: notices first, then its readers and checks."""
    agent = snapshot.agent
    trouble = agent.slurm.trouble if agent.slurm else ""
    notices = dict.fromkeys([agent.configuration_message, agent.state_file, agent.store, trouble, *agent.notices])
    said = [element("li", notice) for notice in notices if notice]
    return element(
        "section",
        element("h2", "Agent", id="agent-name"),
        element("ul", *said, class_="notices") if said else None,
        element("dl", *_facts(snapshot.agent, snapshot), class_="facts"),
        element(
            "div",
            element("div", _readers(snapshot), class_="wide"),
            element("div", _checks(snapshot.checks), class_="wide"),
            class_="pair",
        ),
        aria_labelledby="agent-name",
    )


def _facts(agent: AgentInfo, snapshot: Snapshot) -> Sequence[Html]:
    state = "stopping" if agent.stopping else "ready" if agent.ready else "starting: the first round is not complete"
    facts = [
        ("State", state),
        ("Runs since", f"{moment(agent.started)} ({age(snapshot.time, agent.started)})"),
        ("Reads every", duration(agent.interval_seconds)),
        ("Gate", _gate(snapshot)),
        *_scheduler(agent),
        ("Load", agent.load or "none"),
        ("Configuration", agent.configuration_file or "built-in defaults"),
        ("Version", agent.version),
    ]
    if not agent.configuration_accepted:
        facts.insert(1, ("Reload", "refused: the configuration on disk is not the one in force"))
    return [element("div", element("dt", name), element("dd", text)) for name, text in facts]


def _gate(snapshot: Snapshot) -> str:
    """Return whether jobs are kept away from this node, and how far a hard fault may reach here."""
    if snapshot.simulated:
        return "none: a simulated node keeps no job away"
    closed = sorted({episode.key.code for episode in closing(snapshot)})
    state = f"closed by {', '.join(closed)}" if closed else "open"
    return f"{state} (mode {snapshot.modes.site.value})"


def _scheduler(agent: AgentInfo) -> Iterator[tuple[str, str]]:
    """Yield what jobs, their prologs and the writer to SLURM have to do with this node, where there are any."""
    decided = [f"{words(name)} {count:,}" for name, count in agent.gate_decisions.items() if count]
    if decided:
        yield "Prologs decided", ", ".join(decided)
    if agent.jobs:
        yield "Jobs on the node", f"{agent.jobs:,}"
    slurm = agent.slurm
    if slurm is not None:
        drained = f", drained by {slurm.drained_by}" if slurm.drained_by else ""
        stands = f"{slurm.node} is {' '.join(slurm.states) or 'not known'}{drained}"
        due = f"due and not written: {slurm.wanted}" if slurm.wanted else ""
        yield f"SLURM, mode {slurm.writer}", "; ".join(filter(None, [stands, slurm.doing, due]))


def _readers(snapshot: Snapshot) -> Html:
    rows = [_reader(reader, snapshot) for reader in snapshot.readers]
    head = element(
        "tr", *(element("th", text, scope="col") for text in ("reader", "state", "last round", "what it uses"))
    )
    return element(
        "table", element("caption", "Readers"), element("thead", head),
        element("tbody", *rows) if rows else element("tbody", element("tr", element("td", "none", colspan=4))),
    )  # fmt: skip


def _reader(reader: ReaderStatus, snapshot: Snapshot) -> Html:
    state = "ok" if reader.state is ReaderState.RUNNING else "unknown" if reader.state in _QUIET else "failed"
    troubles = [
        reader.detail,
        f"hung {reader.hangs} times" if reader.hangs else "",
        f"crashed {reader.crashes} times" if reader.crashes else "",
        f"not asked any more: {', '.join(reader.quarantined)}" if reader.quarantined else "",
    ]
    uses = [f"{name} {version}" for name, version in reader.versions.items()]
    return element(
        "tr",
        element("th", reader.backend, scope="row"),
        element("td", reader.state.value, class_=f"state {state}"),
        element("td", age(snapshot.time, reader.last_round)),
        element("td", "; ".join(filter(None, [*troubles, *uses]))),
    )


def _checks(runs: Sequence[CheckRun]) -> Html:
    rows = [_check(run) for run in runs]
    columns = ["check", *(outcome.value for outcome in _OUTCOMES)]
    head = element(
        "tr", *(element("th", text, scope="col", class_="n" if text != "check" else None) for text in columns)
    )
    empty = element("tr", element("td", "none has run yet", colspan=len(columns)))
    return element(
        "table",
        element("caption", "Checks, findings by outcome"),
        element("thead", head),
        element("tbody", *rows or [empty]),
    )


def _check(run: CheckRun) -> Html:
    name = element("th", run.check, scope="row")
    if not run.success:
        return element(
            "tr", name, element("td", badge("unmeasured"), f" did not run: {run.error}", colspan=len(_OUTCOMES))
        )
    cells = []
    for outcome in _OUTCOMES:
        count = run.outcomes.get(outcome.value, 0)
        cells.append(element("td", count or "·", class_=f"n {outcome.value if count else 'soft'}"))
    return element("tr", name, *cells)
