# `make demo` and `make test` work on a new machine: they install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip would compile thirteen thousand modules, which takes a minute. Importing these compiles the three thousand
# that trainings use; of the others, each is compiled when it is imported first.
IMPORTED := import torch._dynamo, torch.distributed.run, torch.utils.tensorboard, torchvision

.PHONY: demo test chaos dali check docs picture cluster-up cluster-down clean

demo: $(VENV)/.train
	$(BIN)/hpc-amp submit configs/cifar_resnet.yaml --follow site=local

test: $(VENV)/.dev
	tests/run $(BIN)

# The whole chaos suite, of which `make test` runs a short version.
chaos: $(VENV)/.dev
	tests/run $(BIN) -m 'chaos or not chaos' tests/chaos tests/cluster/test_survival.py

# The tests of the decoder DALI, which `make test` skips where DALI, of 1.1 GB, is not installed.
dali: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --no-compile nvidia-dali-cuda120
	$(BIN)/python -m pytest tests/unit/test_data_dali.py

# Everything but pytest: what an editor would show.
check: $(VENV)/.dev
	tests/check $(BIN)

docs: $(VENV)/.dev
	$(BIN)/python -m hpc_amp.config.reference
	$(BIN)/python -m hpc_amp.explain.document
	$(BIN)/python -m hpc_amp.doctor.catalogue
	$(BIN)/python -m hpc_amp.migrate.document
	$(BIN)/python -m hpc_amp.cli.document

# The picture of the README: what `make demo` prints.
picture: $(VENV)/.dev
	$(BIN)/hpc-amp submit configs/cifar_resnet.yaml --follow site=local 2>&1 | \
	  $(BIN)/python docs/images/make_picture.py 'make demo' docs/images/demo.svg

cluster-up:
	tests/cluster/up

cluster-down:
	tests/cluster/down

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build

$(VENV)/.train $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[$*]"
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -W ignore -c '$(IMPORTED)'
	touch $@

# Debian splits venv off Python. Where it is missing and we may, it is installed.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "hpc-amp needs Python 3.10 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tests/install-packages python3-venv
	$(PYTHON) -m venv $(VENV)
