#!/usr/bin/env bash
# Makes a virtual environment with the pinned versions of requirements/, and checks what it installed.
#
#   scripts/install.sh [--dev] [--gpu] [VENV_DIR]        VENV_DIR: .venv unless said otherwise
#
# --dev adds what the tests need. --gpu takes the versions for CUDA. May be interrupted: the next run goes on where it
# stopped. A finished environment is recognised and left alone. PYTHON=... chooses the interpreter (3.11 to 3.13). Where
# packages come from is what pip's own configuration says. If there is no torch for the CPU alone, the one with CUDA is
# taken, which needs 4 GB more: TORCH_INDEX=URL is where else to look (pytorch.org names it under Get Started: pip, CPU).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

VENV=.venv DEV="" KIND=cpu
for argument in "$@"; do
    case $argument in
        --dev) DEV=dev ;;
        --gpu) KIND=gpu ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        -*) echo "install.sh: unknown option $argument (there are --dev and --gpu)" >&2; exit 2 ;;
        *) VENV=$argument ;;
    esac
done

fail() { printf 'install.sh: %b\n' "$*" >&2; exit 1; }

# However this ends, what it has started ends with it.
PID="" NO_DEPS=""
ended() {
    set +e
    trap '' INT TERM
    [ -z "$PID" ] || { kill -- "-$PID"; wait "$PID"; } 2>/dev/null
    [ -z "$NO_DEPS" ] || rm -rf "$NO_DEPS"
    case $1 in
        130 | 143)
            [ ! -t 1 ] || printf '\r\033[K'
            echo "install.sh: interrupted: run this again to go on" >&2
            ;;
    esac
}
trap 'ended $?' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start COMMAND...: in the background and in a process group of its own, so that a Ctrl+C comes here alone.
start() {
    set -m
    "$@" < /dev/null &
    PID=$!
    set +m
}

# The version of Python that has everything to make an environment with.
find_python() {
    local candidate version without=""
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case $version in 3.11 | 3.12 | 3.13) ;; *) continue ;; esac
        if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        without=$version
    done
    if [ -n "$without" ]; then
        fail "Python $without has no venv module. Install it and run this again:\n  apt-get install python$without-venv"
    fi
    fail "needs Python 3.11, 3.12 or 3.13, found none${PYTHON:+ at PYTHON=$PYTHON}. Install one and run this again:" \
        "\n  apt-get install python3 python3-venv"
}

fingerprint() { # of everything that decides what is installed, but for --dev
    { echo "$KIND"; cat requirements/*.txt pyproject.toml scripts/install.sh; } | sha256sum | cut -d' ' -f1
}

megabytes() { du -sm "$VENV" 2>/dev/null | cut -f1; }

# run_stage NAME COMMAND...: runs it with its output in the log, and shows that it is alive. In a terminal one line that
# changes, else a line at the start, one every 15 seconds, one at the end.
STAGE=0 STAGES=0
run_stage() {
    local name=$1 began=$SECONDS before size status=0 said=0 waited line; shift
    STAGE=$((STAGE + 1)) before=$(megabytes)
    line="[$STAGE/$STAGES] $name"
    echo "$name" > "$VENV/.slime-stage"
    printf '\n== %s\n' "$*" >> "$LOG"
    [ -t 1 ] || echo "$line ..."
    start "$@" >> "$LOG" 2>&1
    while kill -0 "$PID" 2>/dev/null; do
        sleep 0.2
        waited=$((SECONDS - began))
        if [ -t 1 ]; then
            printf '\r\033[K%s  %d s  %.60s' "$line" "$waited" "$(tail -n 1 "$LOG" | tr -d '\r' | sed 's/^ *//')"
        elif [ $((waited - said)) -ge 15 ]; then
            said=$waited
            echo "$line ... $waited s"
        fi
    done
    wait "$PID" || status=$?
    PID=""
    [ ! -t 1 ] || printf '\r\033[K'
    if [ $status -ne 0 ]; then
        echo "$line failed; the end of $LOG:" >&2
        tail -n 15 "$LOG" | sed 's/^/  | /' >&2
        fail "run this again to go on where it stopped"
    fi
    rm -f "$VENV/.slime-stage"
    size=$(($(megabytes) - ${before:-0}))
    printf '%-58s %4d s %6d MB\n' "$line" $((SECONDS - began)) "$size"
}

pip_install() { # a stage that was interrupted may have left half a package, so it is done again from the start
    local name=$1 again=(); shift
    if [ "$name" = "$UNFINISHED" ]; then
        again=(--force-reinstall)
        [ $KIND = gpu ] || again+=(--no-deps)  # the lists for the CPU are complete
    fi
    run_stage "$name" ${COMMAND:-pip} "${again[@]}" "$@"
}

pip() { "$VENV/bin/python" -m pip install --progress-bar off "$@"; }

# torch_for_cpu [OPTION...] torch==VERSION: the build for the CPU alone where it is to be had.
torch_for_cpu() {
    local index=() again=() wanted=${!#}
    [ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
    ! pip "${index[@]}" "$@+cpu" || return 0
    tail -n 5 "$LOG" | grep -q 'No matching distribution found' || return 1  # a lost connection, a full disk
    if [ "$(uname -m)" = x86_64 ]; then
        [ ! -t 3 ] || printf '\r\033[K' >&3
        echo "install.sh: found no torch for the CPU alone: this takes the one with CUDA, 4 GB more (see --help: TORCH_INDEX)" >&3
        if [ ! -d "$VENV"/lib/python3*/site-packages/torch ] && [ "$(free_megabytes)" -lt 10000 ]; then
            echo "with CUDA this needs 10 GB of free disk (6 GB stay in use), and there are $(free_megabytes) MB"
            return 1
        fi
    fi
    [ $# -eq 1 ] || again=(--force-reinstall) # and what it depends on: CUDA
    pip "${again[@]}" "$wanted"
}

free_megabytes() { df -Pm "$(dirname "$VENV")" | awk 'NR == 2 { print $4 }'; }

# The checkout whose slime an environment has, if that is another one than this and still there.
other_checkout() {
    local file other
    for file in "$VENV"/lib/python*/site-packages/slime-*.dist-info/direct_url.json; do
        [ -f "$file" ] || continue
        other=$(sed -n 's|.*"url": *"file://\([^"]*\)".*|\1|p' "$file")
        other=$(printf '%b' "${other//%/\\x}")  # a URL has %20 for a space
        if [ -d "$other" ] && [ ! "$other" -ef . ]; then echo "$other"; fi
    done
}

PRINT=$(fingerprint)
STAMP=$VENV/.slime-installed
INSTALLED="" INSTALLED_DEV=""
[ ! -f "$STAMP" ] || read -r INSTALLED INSTALLED_DEV < "$STAMP" || true
if [ "$INSTALLED" = "$PRINT" ] && [ "${DEV:-$INSTALLED_DEV}" = "$INSTALLED_DEV" ] && [ -x "$VENV/bin/python" ]; then
    echo "$VENV is up to date"
    exit 0
fi
DEV=${DEV:-$INSTALLED_DEV}

exec 3>&1 # where people look, also from within a stage
exec 9< . # one install at a time: the lock is on this directory, and leaves no file
if command -v flock > /dev/null && ! flock -n 9; then
    echo "another install is running in $PWD: waiting for it"
    flock 9
fi
if [ -e "$VENV" ] && [ ! -f "$VENV/pyvenv.cfg" ] && [ -n "$(ls -A "$VENV")" ]; then
    fail "$VENV is there and is no virtual environment: move it away, or name another directory"
fi
OTHER=$(other_checkout)
if [ -n "$OTHER" ]; then
    fail "$VENV is the environment of $OTHER, which an install from here would make use this checkout's slime." \
        "\nName another directory: scripts/install.sh .venv-of-this-checkout" \
        "\nOr, if this checkout is to have it: $VENV/bin/python -m pip uninstall -y slime, and run this again"
fi
FREE=$(free_megabytes)
if [ ! -x "$VENV/bin/python" ] && [ "$FREE" -lt 4000 ]; then
    fail "needs 4 GB of free disk (2 GB stay in use), $(dirname "$VENV") has $FREE MB"
fi

BEGAN=$SECONDS
if ! "$VENV/bin/python" -m pip --version > /dev/null 2>&1; then
    FOUND=$(find_python)
    echo "making $VENV with $("$FOUND" --version) ($FOUND)"
    start "$FOUND" -m venv --clear "$VENV"
    wait "$PID"
    PID=""
fi
rm -f "$STAMP"
LOG=$VENV/install.log
UNFINISHED=$(cat "$VENV/.slime-stage" 2>/dev/null || true)
NO_DEPS=$(mktemp -d)
MEGATRON=$NO_DEPS/megatron.txt OTHERS=$NO_DEPS/others.txt
case $KIND in cpu) LIST=requirements/cpu-nodeps.txt ;; gpu) LIST=requirements/gpu.txt ;; esac
grep '^megatron-core==' $LIST > "$MEGATRON"
grep -v '^megatron-core==' $LIST > "$OTHERS"
install_megatron() { # it says that it needs Python 3.12, and ships for 3.11
    pip_install "Megatron-core" --no-deps --ignore-requires-python -r "$MEGATRON"
}

FOR_TESTS=()
[ -z "$DEV" ] || FOR_TESTS=(-r requirements/dev.txt -r requirements/trackers.txt)
if [ $KIND = cpu ]; then
    STAGES=6
    COMMAND=torch_for_cpu pip_install "torch for the CPU" "$(grep '^torch==' requirements/cpu.txt)"
    pip_install "SGLang, its router, xgrammar" --no-deps -r "$OTHERS"
    install_megatron
    pip_install "Ray, transformers and the rest" -r requirements/cpu.txt "${FOR_TESTS[@]}"
else
    STAGES=4
    pip_install "SGLang, Ray and the rest for CUDA" -r "$OTHERS" "${FOR_TESTS[@]}"
    install_megatron
fi
pip_install "slime" --no-deps --no-build-isolation --editable .
run_stage "checking what is installed" "$VENV/bin/python" -m slime.doctor --imports
echo "$PRINT $DEV" > "$STAMP"
echo "$VENV is ready: $((SECONDS - BEGAN)) s, $(megabytes) MB. Next: bash scripts/quickstart.sh"
