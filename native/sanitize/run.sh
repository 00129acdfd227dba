#!/usr/bin/env bash
# Native and runner tests under the address and undefined-behaviour sanitizers. Argument: the environment's bin folder.
# A sanitizer that ends the process ends pytest too, without a closing line; so the verdict needs that line, and
# reports go to files, which pytest cannot swallow.
set -euo pipefail

bin=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work="$root/build/asan"
cxx=${CXX:-g++}
cd "$root"

fail() {
    echo "make asan: $*" >&2
    exit 1
}

mkdir -p "$work"
libraries=""
for name in libasan.so libubsan.so; do
    library=$("$cxx" -print-file-name="$name")
    [ -e "$library" ] || fail "$cxx has no $name; install the compiler's sanitizer libraries (CXX=g++ is what this expects)"
    libraries="$libraries${libraries:+:}$library"
done
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Leaks are not looked for: the interpreter keeps much until it exits.
asan_options=detect_leaks=0:halt_on_error=1

run_sanitized() {
    LD_PRELOAD="$libraries" ASAN_OPTIONS="$asan_options${ASAN_EXTRA:+:$ASAN_EXTRA}" "$@"
}

"$cxx" -std=c++20 -O1 -g -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=undefined \
    -o "$work/planted_fault.so" native/sanitize/planted_fault.cpp
expect_report() { # function, text that its report must hold
    local output
    if output=$(run_sanitized "$bin/python" -c \
        "import ctypes; ctypes.CDLL('$work/planted_fault.so').$1(8)" 2>&1); then
        fail "the planted fault $1 was not reported: this run would prove nothing"
    fi
    grep -q "$2" <<<"$output" || fail "the planted fault $1 ended with another report: $output"
    echo "planted fault $1: reported"
}
expect_report planted_overflow "AddressSanitizer: heap-buffer-overflow"
expect_report planted_undefined "signed integer overflow"

"$bin/cmake" -S . -B "$work/cmake" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_SANITIZE=ON \
    -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_MAKE_PROGRAM="$bin/ninja" -DPython_EXECUTABLE="$bin/python" --log-level=WARNING
"$bin/cmake" --build "$work/cmake"
rm -rf "$work/python"
mkdir -p "$work/python"
cp -r src/headrace "$work/python/"
rm -f "$work"/python/headrace/_native*.so "$work"/report.*
"$bin/cmake" --install "$work/cmake" --prefix "$work/python" >/dev/null

# The editable install's import hook would win over PYTHONPATH.
cat >"$work/python/sitecustomize.py" <<'PYTHON'
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
PYTHON
export PYTHONPATH="$work/python"
module=$(run_sanitized "$bin/python" -c "import headrace._native as native; print(native.__file__)")
case "$module" in
"$work"/*) echo "testing $module" ;;
*) fail "the tests would load $module, not the sanitized module" ;;
esac

tests=()
for folder in tests/native tests/runner; do
    [ -d "$folder" ] && tests+=("$folder")
done
[ ${#tests[@]} -gt 0 ] || fail "no tests to run"
status=0
ASAN_EXTRA="log_path=$work/report" UBSAN_OPTIONS="$UBSAN_OPTIONS:log_path=$work/report" \
    run_sanitized "$bin/python" -m pytest -m "not full" -p no:cacheprovider "${tests[@]}" 2>&1 | tee "$work/pytest.log" ||
    status=$?
for report in "$work"/report.*; do
    [ -e "$report" ] || continue
    cat "$report" >&2
    status=1
done
grep -qE '^(=+ )?[0-9]+ passed' "$work/pytest.log" || fail "pytest ended without its closing line, or nothing passed (exit code $status)"
[ "$status" -eq 0 ] || fail "failed (exit code $status)"
