"""The house rules that import-linter cannot express: which library has which home, and what no module does.

Which room imports which is the contract in pyproject.toml, which `make lint` checks.

Every rule is a function from a parsed module to its violations; it is run over the whole tree, and over a planted
fault that it must find.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from fakes.house import FLOORS, FOLDERS, Module, drawing, imports_of, modules, parsed, room_of, rooms_table, within

LIBRARY_HOMES = {
    "amdsmi": "checks.backends.amd.amdsmi",
    "jinja2": "exporters.templates",
    "markupsafe": "exporters.templates",
    "prometheus_client": "exporters.metrics",
    "pynvml": "checks.backends.nvidia.nvml",
    "torch": "checks.burnin",
}
"""Libraries that cost memory or touch a driver, and the one module or package that may import each."""

IMPORTED_IN_FUNCTIONS = ("amdsmi", "jinja2", "markupsafe", "pynvml")
"""A driver's library must not load before its reader asks for it, nor templates before an HTML page is asked for."""

NEVER = ("multiprocessing", "rich")
"""Forked copies of a driver client are undefined; rich doubles what logging costs."""

LIBRARIES_OUT_OF_JUDGEMENT = (*LIBRARY_HOMES, "rich", "yaml")

LONGEST_FUNCTION_LINES = 60
LONGEST_MODULE_LINES = 600
BROAD_EXCEPT_HOME = "checks.core.guard"
PROC_HOME, PROC_READER, PROC_MOVER = "checks.backends.host.memory", "checks.backends.host.backend", "look_below"

UNBOUNDED_THREADS = frozenset({"Thread", "Timer", "ThreadPoolExecutor", "to_thread", "start_new_thread"})
THREAD_HOMES = {
    "checks.system.background": "start_new_thread",
    "exporters.web.http": "start_new_thread",
    "checks.burnin.certify": "ThreadPoolExecutor",
}
"""What waits for no first step of a thread, and a child that its parent ends at a deadline."""


Rule = Callable[[Module], Iterator[str]]


def has_a_room(module: Module) -> Iterator[str]:
    """Nothing stands loose in one of the three folders but the command and its entry."""
    if not module.is_package and room_of(module.name)[1] in FOLDERS:
        yield f"{module.name} stands in no room"


def imports_by_the_public_name(module: Module) -> Iterator[str]:
    """`import checks` would load a second copy of every class where the working directory is the checkout."""
    for found in imports_of(module):
        if not found.ours and found.target.split(".")[0] in FOLDERS:
            yield f"{module.name}:{found.line} imports {found.target} without nodevet. in front"


def keeps_private_names(module: Module) -> Iterator[str]:
    """A name with an underscore stays in its module: that alone tells what others may rely on."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if alias.name.startswith("_") and not alias.name.startswith("__"):
                    yield f"{module.name}:{node.lineno} imports {alias.name}, which is private to {node.module}"


def keeps_libraries_at_home(module: Module) -> Iterator[str]:
    """A library that is heavy or touches a driver is imported in its one home only."""
    for found in imports_of(module):
        library = found.target.split(".")[0]
        if found.ours:
            continue
        if library in NEVER:
            yield f"{module.name}:{found.line} imports {library}, which nothing may"
        home = LIBRARY_HOMES.get(library)
        if home and not within(module.name, home):
            yield f"{module.name}:{found.line} imports {library}, which only {home} may"
        if library in IMPORTED_IN_FUNCTIONS and found.at_top:
            yield f"{module.name}:{found.line} imports {library} at import time instead of in a function"


def catches_what_it_names(module: Module) -> Iterator[str]:
    """Errors are caught by name; the guard alone, once, catches whatever a part raises.

    A handler that cleans up and raises again keeps nothing from anybody.
    """
    broad = [node for node in ast.walk(module.tree) if isinstance(node, ast.ExceptHandler) and _is_broad(node)]
    for handler in broad[1 if module.name == BROAD_EXCEPT_HOME else 0 :]:
        yield f"{module.name}:{handler.lineno} catches every exception"


def moves_proc_in_one_place(module: Module) -> Iterator[str]:
    """Where psutil finds /proc holds for all of a process: one function moves it, and one reader calls that."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(attr="PROCFS_PATH", ctx=ast.Store()) | ast.Constant(value="PROCFS_PATH"):
                if module.name != PROC_HOME:
                    yield f"{module.name}:{node.lineno} moves where psutil finds /proc"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name == PROC_MOVER:
                if module.name != PROC_READER:
                    yield f"{module.name}:{node.lineno} moves where psutil finds /proc, and is no start of a reader"


def _is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    passes_on = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
    return not passes_on and any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")) for kind in caught
    )


def holds_no_state(module: Module) -> Iterator[str]:
    """No module-level variable that is meant to change, and no `global`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.name}:{node.lineno} declares a global"
    for node in module.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_mutable(node.value):
            for name in names:
                if not name.isupper() and name != "__all__":
                    yield f"{module.name}:{node.lineno} binds {name} to a mutable object"


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in ("list", "dict", "set", "bytearray", "defaultdict", "deque", "OrderedDict", "Counter")
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def stays_short(module: Module) -> Iterator[str]:
    """Functions and files fit a reader's head; a docstring does not count against a function."""
    lines = module.source.count("\n")
    if lines > LONGEST_MODULE_LINES:
        yield f"{module.name} has {lines} lines, more than {LONGEST_MODULE_LINES}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > LONGEST_FUNCTION_LINES:
            yield f"{module.name}:{node.lineno} {node.name} has {_length(node)} lines, over {LONGEST_FUNCTION_LINES}"


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None and first.end_lineno is not None
    return length - (first.end_lineno - first.lineno + 1 if has_docstring and first.end_lineno else 0)


def starts_threads_within_a_bound(module: Module) -> Iterator[str]:
    """`threading.Thread.start` waits for ever for a thread that the machine has no memory for."""
    for node in ast.walk(module.tree):
        names = [getattr(node, "id", ""), getattr(node, "attr", "")]
        names += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom | ast.Import) else []
        if UNBOUNDED_THREADS.intersection(names) - {THREAD_HOMES.get(module.name)}:
            yield f"{module.name}:{getattr(node, 'lineno', 0)} starts a thread without checks.system.background"


RULES: tuple[Rule, ...] = (
    has_a_room,
    imports_by_the_public_name,
    keeps_private_names,
    keeps_libraries_at_home,
    catches_what_it_names,
    moves_proc_in_one_place,
    holds_no_state,
    stays_short,
    starts_threads_within_a_bound,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_tree_keeps_the_rule(repository: Path, rule: Rule) -> None:
    """No file of the three folders breaks the rule."""
    assert [violation for module in modules(repository) for violation in rule(module)] == []


def test_the_docs_show_the_rooms_as_they_are(repository: Path, golden: Callable[[Path, str], None]) -> None:
    """The drawing and the table of rooms in the docs are what the contract and the imports give now."""
    path = repository / "docs" / "explanation" / "architecture.md"
    before, opening, rest = path.read_text().partition("<!-- rooms: written by make golden -->\n")
    _, closing, after = rest.partition("<!-- end of rooms -->")
    page = f"{before}{opening}{drawing()}\n{rooms_table(repository)}{closing}{after}"
    golden(path, page)


MODULE_NAME = re.compile(r"\bnodevet(?:\.[a-z_]\w*)+")


def test_each_string_that_names_a_module_names_one(repository: Path) -> None:
    """A child is started, a backend loaded and a resource opened by name: a module that moved takes it along."""
    named = [
        (found[0], f"{module.name}:{node.lineno}")
        for module in modules(repository)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in MODULE_NAME.finditer(node.value)
        if found[0].split(".")[1] in FOLDERS
    ]
    assert {name for name, _ in named} >= {"nodevet.checks.backends.reader_main", "nodevet.checks.burnin.main"}
    assert [(name, where) for name, where in named if find_spec(name) is None] == []


LONG_FUNCTION = "def f():\n" + "    g()\n" * LONGEST_FUNCTION_LINES
LONG_DOCSTRING = 'def f():\n    """\n' + "    x\n" * LONGEST_FUNCTION_LINES + '    """\n'

FAULTS = [
    (has_a_room, "checks.thing", "x = 1"),
    (has_a_room, "agent.helper", "x = 1"),
    (imports_by_the_public_name, "agent.cli", "import checks.model"),
    (imports_by_the_public_name, "agent.cli", "from exporters import schema"),
    (keeps_private_names, "agent.daemon.loop", "from nodevet.checks.engine.view import View, _name"),
    (keeps_private_names, "checks.engine.engine", "def f():\n    from .view import _name"),
    (keeps_libraries_at_home, "agent.daemon.loop", "import prometheus_client"),
    (keeps_libraries_at_home, "exporters.web.http", "from prometheus_client.exposition import choose_encoder"),
    (keeps_libraries_at_home, "agent.daemon.loop", "def f():\n    import torch.cuda"),
    (keeps_libraries_at_home, "checks.backends.host.backend", "def f():\n    import pynvml"),
    (keeps_libraries_at_home, "checks.backends.nvidia.nvml", "import pynvml"),
    (keeps_libraries_at_home, "exporters.report.render", "def f():\n    from markupsafe import Markup"),
    (keeps_libraries_at_home, "exporters.templates", "from jinja2 import Environment"),
    (keeps_libraries_at_home, "exporters.web.http", "def f():\n    from jinja2 import Template"),
    (keeps_libraries_at_home, "agent.cli", "from rich.table import Table"),
    (catches_what_it_names, "agent.daemon.loop", "try:\n    f()\nexcept Exception:\n    g()"),
    (catches_what_it_names, "agent.daemon.loop", "try:\n    f()\nexcept (OSError, BaseException):\n    g()"),
    (catches_what_it_names, "agent.daemon.loop", "try:\n    f()\nexcept:\n    g()"),
    (catches_what_it_names, "checks.core.guard", "try:\n    f()\nexcept Exception:\n    g()\n" * 2),
    (moves_proc_in_one_place, "agent.daemon.loop", 'psutil.PROCFS_PATH = "/host/proc"'),
    (moves_proc_in_one_place, "agent.daemon.loop", 'setattr(psutil, "PROCFS_PATH", "/host/proc")'),
    (moves_proc_in_one_place, "agent.daemon.loop", "from nodevet.checks.backends.host.memory import look_below"),
    (starts_threads_within_a_bound, "agent.store.publisher", "threading.Thread(target=f).start()"),
    (starts_threads_within_a_bound, "agent.store.publisher", "from threading import Thread as Other"),
    (starts_threads_within_a_bound, "agent.store.publisher", "start_new_thread(f, ())"),
    (holds_no_state, "checks.engine.registry", "checks = {}"),
    (holds_no_state, "checks.engine.registry", "_checks: list[str] = list()"),
    (holds_no_state, "checks.engine.registry", "def f():\n    global x\n    x = 1"),
    (stays_short, "agent.cli", LONG_FUNCTION),
    (stays_short, "agent.cli", "x = 1\n" * (LONGEST_MODULE_LINES + 1)),
]

ALLOWED = [
    (has_a_room, "checks.core.thing", "x = 1"),
    (imports_by_the_public_name, "agent.cli", "import nodevet.checks.core.model\nimport checkstyle"),
    (keeps_private_names, "agent.cli", "from nodevet.agent import __version__\nfrom . import _options"),
    (keeps_libraries_at_home, "checks.backends.nvidia.nvml", "def f():\n    import pynvml"),
    (keeps_libraries_at_home, "checks.burnin.gemm", "import torch"),
    (keeps_libraries_at_home, "exporters.metrics.family", "import prometheus_client"),
    (keeps_libraries_at_home, "exporters.templates", "def f():\n    import jinja2"),
    (catches_what_it_names, "checks.core.guard", "try:\n    f()\nexcept Exception:\n    g()"),
    (catches_what_it_names, "agent.daemon.loop", "try:\n    f()\nexcept (OSError, ValueError):\n    g()"),
    (catches_what_it_names, "agent.store", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    (moves_proc_in_one_place, "checks.backends.host.memory", 'psutil.PROCFS_PATH = "/host/proc"'),
    (moves_proc_in_one_place, "checks.backends.host.backend", "from .memory import look_below\nlook_below(root)"),
    (moves_proc_in_one_place, "agent.daemon.loop", "print(psutil.PROCFS_PATH)"),
    (starts_threads_within_a_bound, "agent.store.publisher", "Background(f).start()\nthreading.Lock()"),
    (starts_threads_within_a_bound, "exporters.web.http", "start_new_thread(f, ())"),
    (holds_no_state, "checks.engine.registry", '__all__ = ["f"]\nLIMITS = {"a": 1}\nname = "x"'),
    (stays_short, "agent.cli", LONG_DOCSTRING),
]


@pytest.mark.parametrize(("rule", "name", "source"), FAULTS)
def test_rule_finds_a_planted_fault(rule: Rule, name: str, source: str) -> None:
    """Each rule fails on the fault that it is there for."""
    assert len(list(rule(parsed(name, source)))) == 1


@pytest.mark.parametrize(("rule", "name", "source"), ALLOWED)
def test_rule_leaves_the_allowed_alone(rule: Rule, name: str, source: str) -> None:
    """Each rule is quiet on what stands closest to its fault."""
    assert list(rule(parsed(name, source))) == []


PURE = "checks.core checks.system checks.reference checks.engine checks.topology"

IMPORT_AND_REPORT = """
import importlib, pkgutil, sys
for name in sys.argv[2:]:
    module = importlib.import_module(f"nodevet.{name}")
    for _, below, _ in pkgutil.iter_modules(getattr(module, "__path__", []), module.__name__ + "."):
        importlib.import_module(below)
print(*sorted(set(sys.argv[1].split(",")) & set(sys.modules)))
"""


def _loaded(libraries: tuple[str, ...], modules: list[str]) -> list[str]:
    """Which of the libraries a fresh interpreter holds after importing the modules and all below them."""
    command = [sys.executable, "-I", "-c", IMPORT_AND_REPORT, ",".join(libraries), *modules]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_judgement_loads_no_heavy_library() -> None:
    """Vocabulary, rules, health checks and kernel-log parsing cost neither torch nor a driver's library."""
    assert _loaded(LIBRARIES_OUT_OF_JUDGEMENT, [*PURE.split(), "checks.health", "checks.kernel_log"]) == []


def test_backends_load_no_driver_library_before_they_are_asked() -> None:
    """The package of backends can be imported on a machine without any vendor's library."""
    assert _loaded(("amdsmi", "pynvml", "torch"), ["checks.backends"]) == []


def test_agent_and_commands_load_neither_torch_nor_a_driver_library() -> None:
    """The load and the drivers belong to children: the process that watches stays small and cannot hang in them."""
    packages = [room for rooms in FLOORS for room in rooms if room.split(".")[0] in ("agent", "exporters")]
    assert _loaded(("amdsmi", "pynvml", "rich", "torch"), packages) == []


def test_the_agent_loads_no_encoder_before_the_first_scrape() -> None:
    """It costs memory, and nothing where nobody scrapes."""
    assert _loaded(("prometheus_client",), ["agent.daemon", "agent.commands", "exporters.web"]) == []


ASK_FOR_AN_AGENT = """
import sys
sys.path.insert(0, sys.argv[1])
from nodevet.agent.cli import main
code = main(["agent", "--simulate", "no-such-node"])
print(code, "structlog" in sys.modules, sys.modules.get("rich"))
print(*(name in sys.modules for name in ("asyncio", "asyncio.events", "html")))
import asyncio, http.server, structlog
async def loop(): return structlog.stdlib.asyncio.get_running_loop() is asyncio.get_running_loop()
print(asyncio.run(loop()), http.server.html.escape("<"))
"""


def test_the_agent_imports_no_rich_where_it_is_installed(tmp_path: Path) -> None:
    """Structlog imports it for its console if it can: that is 5 MiB of memory, on every node."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise SystemExit('rich was imported')\n")
    command = [sys.executable, "-I", "-c", ASK_FOR_AN_AGENT, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0].split() == ["64", "True", "None"], done.stderr


def test_the_agent_loads_asyncio_and_html_only_for_whoever_uses_them() -> None:
    """Structlog imports the former for functions that the agent never calls; code of a site may need either."""
    command = [sys.executable, "-I", "-c", ASK_FOR_AN_AGENT, ""]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[1:] == ["False False False", "True &lt;"], done.stderr
