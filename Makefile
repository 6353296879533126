# `make run` and `make test` do all their own set-up; everything lands in .venv.

VENV ?= .venv
ENVIRONMENT_INPUTS = pyproject.toml .ci/constraints.txt .ci/environment
export VENV PYTHON

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test golden soak lint types wheel-test picture bench clean

help: ## show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo "PYTHON=... chooses the interpreter, ARGS=... is handed on to nodevet agent or pytest."

run: $(VENV)/.run ## install what is needed and run the agent in the foreground
	@exec $(VENV)/bin/nodevet agent $(ARGS)

test: $(VENV)/.test ## install what is needed and run the tests
	@$(VENV)/bin/python -m pytest $(ARGS)

golden: $(VENV)/.test ## write every file that follows from the code: pages of docs/reference, metrics, schema, dashboards
	@$(VENV)/bin/python -m pytest -q -m golden --update-golden $(ARGS)

soak: $(VENV)/.test ## run every campaign in full; docs/reference/soak.md has the last result
	@$(VENV)/bin/python -m pytest -m soak --soak $(ARGS)

lint: $(VENV)/.lint ## ruff: rules and formatting; import-linter: which package imports which
	@status=0; $(VENV)/bin/ruff check || status=1; $(VENV)/bin/ruff format --check || status=1; \
	PYTHONPATH=tests/typing $(VENV)/import-linter/bin/lint-imports --no-cache --no-logo pyproject.toml || status=1; exit $$status

types: $(VENV)/.lint ## mypy and pyright
	@status=0; $(VENV)/bin/mypy || status=1; $(VENV)/bin/pyright || status=1; exit $$status

wheel-test: $(VENV)/.test ## build the wheel, install it elsewhere and use it there; ARGS runs tests against it too
	@.ci/wheel-test $(ARGS)

picture: $(VENV)/.test ## take the picture of the status page that the README shows
	@$(VENV)/bin/python -m pytest tests/test_status_page_browser.py -k picture --update-golden

bench: $(VENV)/.test ## measure against the budgets; BENCH=scrape runs one
	@$(VENV)/bin/python benchmarks $(BENCH) $(ARGS)

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.%: $(ENVIRONMENT_INPUTS)
	@.ci/environment $*
