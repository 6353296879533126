"""The landing page: what the node is found to be, for a person with a browser. No script, nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from nodevet.checks.model import Snapshot
from nodevet.exporters.schema import AgentDocument, DeviceDocument, FindingDocument, status_document

__all__ = ["landing_page"]

_REPORT_LINK = '<a href="/report">newest report</a> · '

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5c6670;--line:#d9dee3;--paper:#fff;
--ok:#1a7f4b;--degraded:#9a6700;--failed:#c02b2b;--unknown:#5c6670}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#98a3ae;--line:#343c44;--paper:#14181c;
--ok:#4cc38a;--degraded:#e0b13e;--failed:#ff7b72;--unknown:#98a3ae}}
body{margin:0 auto;max-width:60rem;padding:2rem 1rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1rem;font-weight:600;margin:0;color:var(--soft)}h2{font-size:1rem;margin:2rem 0 .5rem}
.verdict{font-size:2.2rem;font-weight:650;line-height:1.2;margin:.5rem 0 .25rem}
.ok{color:var(--ok)}.degraded,.warn{color:var(--degraded)}.failed,.fail{color:var(--failed)}
.unknown,.unmeasured{color:var(--unknown)}
table{border-collapse:collapse;width:100%;font-size:.9rem}div.wide{overflow-x:auto}
th,td{text-align:left;padding:.35rem .75rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500}code{font-size:.85em}a{color:inherit}
.soft,footer{color:var(--soft)}footer{margin-top:2.5rem;font-size:.85rem}
.simulated{border:1px solid var(--degraded);color:var(--degraded);padding:.25rem .5rem;display:inline-block}
"""


def landing_page(snapshot: Snapshot, *, report: bool = False) -> str:
    """Return the landing page of *snapshot* as HTML, with a link to the report where there is one."""
    status = status_document(snapshot)
    simulated = '<p class="simulated">simulated node</p>' if status.simulated else ""
    action = "" if status.action == "none" else f" What to do: {escape(status.action.replace('_', ' '))}."
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(status.node)}: {escape(status.verdict)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>nodevet on {escape(status.node)}</h1>{simulated}"
        f'<p class="verdict {escape(status.verdict)}" id="verdict">{escape(status.verdict)}</p>'
        f"<p>{escape(status.reason)}.{action}</p>"
        f"{_findings(status.findings)}{_devices(status.devices)}{_agent(status.agent)}"
        f"<footer>{_REPORT_LINK if report else ''}"
        '<a href="/metrics">metrics</a> · <a href="/api/v1/status">status as JSON</a> · '
        '<a href="/-/healthy">healthy</a> · <a href="/-/ready">ready</a><br>'
        f"judged {escape(status.time)}, generation {status.generation}, nodevet {escape(status.agent.version)}"
        "</footer></body></html>\n"
    )


def _agent(agent: AgentDocument) -> str:
    """Return what the agent has to say of itself: a refused configuration, a store that cannot be written, its load."""
    said = [agent.configuration_message, *agent.notices, f"load: {agent.load}" if agent.load else ""]
    lines = "".join(f"<li>{escape(line)}</li>" for line in said if line)
    return f"<h2>Agent</h2><ul>{lines}</ul>" if lines else ""


def _findings(findings: Iterable[FindingDocument]) -> str:
    rows = [
        (
            f'<td class="{escape(finding.outcome)}">{escape(finding.outcome)}</td>'
            f"<td><code>{escape(finding.code)}</code></td>"
            f"<td>{escape(finding.device)}{escape(f', {finding.part}' if finding.part else '')}</td>"
            f"<td>{escape(finding.message)}</td>"
        )
        for finding in findings
    ]
    return _table("Findings", ("outcome", "code", "device", "what and what to do"), rows) if rows else ""


def _devices(devices: Iterable[DeviceDocument]) -> str:
    rows = [
        (
            f'<td class="{escape(device.verdict)}">{escape(device.verdict)}</td>'
            f"<td>{escape(device.model if device.model != 'unknown' else device.kind)}</td>"
            f"<td><code>{escape(device.id)}</code></td>"
            f"<td>{escape(device.pci or '')}</td>"
        )
        for device in devices
    ]
    return _table("Devices", ("verdict", "model", "id", "PCI"), rows)


def _table(title: str, heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<h2>{title}</h2><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
