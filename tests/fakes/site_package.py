"""A package of a site, with checks of its own, as `pip install` would leave it in a folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["GOOD", "site_package"]

GOOD = '''
import msgspec
from nodevet.checks.core.model import Finding, Outcome
from nodevet.checks.engine.registry import check

class Policy(msgspec.Struct, frozen=True):
    limit: float = 1.0

@check("{check}", policy=Policy)
def judge(view, policy):
    """Look at the site's own disk."""
    {body}
    yield Finding(check="{check}", code="{check}.fine", outcome=Outcome.PASS, message="fine")
'''
"""A module of one check: its name, and what it does before it finds that all is well."""


def site_package(
    folder: Path,
    code: str = "",
    *,
    check: str = "site-disk",
    body: str = "pass",
    entry: str = "site = site_checks",
    points: bytes | None = None,
) -> Path:
    """Write the package to *folder*: its module, the *code* or one good check, and its *entry* point; return both's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site_checks.py").write_text(code or GOOD.format(check=check, body=body))
    about = folder / "site_checks-1.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: site-checks\nVersion: 1\n")
    (about / "entry_points.txt").write_bytes(points or f"[nodevet.checks]\n{entry}\n".encode())
    return folder
