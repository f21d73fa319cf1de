#!/usr/bin/env bash
# All checks, as CI runs them: lint, format, types, layers, tests, tests on eight devices.
#
#   ./test.sh                everything
#   ./test.sh tests/core -x  only `pytest tests/core -x`
#
# Makes .venv when there is none. CI=true or RLVR_PARITY=1 adds the parity extra (torch and
# transformers), without which the tests against the reference models are skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. launch/env.sh

extras=(test)
if [ "${CI:-}" = true ] || [ "${RLVR_PARITY:-}" = 1 ]; then
  extras+=(parity)
fi
prepare_env "${extras[@]}"

eight_devices() {
  XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=8" "$@"
}

if [ $# -gt 0 ]; then
  case " $* " in
    *" tests/multidevice"*) eight_devices python -m pytest "$@" ;;
    *) python -m pytest "$@" ;;
  esac
  exit
fi

step() {
  echo "== $1"
  shift
  "$@"
}
step "ruff: lint" ruff check .
step "ruff: format" ruff format --check .
step "pyright" pyright
step "import-linter" lint-imports
# Two files at a time: most of the time goes into compiling, which uses one core.
step "pytest" python -m pytest -n 2 --dist loadfile tests --ignore=tests/multidevice
# A process of its own: the number of devices is fixed when JAX starts. No tests is exit status 5.
step "pytest, eight devices" eight_devices python -m pytest tests/multidevice
echo "== all checks passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
